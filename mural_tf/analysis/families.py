"""The family of each language, for colouring a map: branches of Indo-European, otherwise families.

After Glottolog's classification, at the depth that MURAL's Figure 3 shows (Germanic, Romance, Slavic,
Celtic, Finnic, …).
"""

from __future__ import annotations

_FAMILIES = {
    "Germanic": "en de nl sv da no nb nn is fo lb af yi fy gsw nds ang frr",
    "Romance": "fr es pt it ro ca gl oc rm ast an sc scn la vec lij lld wa co",
    "Slavic": "ru uk be pl cs sk sl hr sr bs mk bg hsb dsb csb rue szl",
    "Baltic": "lt lv lvs ltg",
    "Celtic": "ga cy gd br gv kw",
    "Greek": "el",
    "Albanian": "sq",
    "Armenian": "hy hyw",
    "Indo-Aryan": "hi ur bn pa gu mr ne si or as sd kok mai doi sa bho awa ks",
    "Iranian": "fa tg ku ckb kmr ps os",
    "Finnic": "fi et vro krl",
    "Uralic, other": "hu se smn sms smj sma myv mdf udm kv mhr",
    "Basque": "eu",
    "Turkic": "tr az uz kk ky tk tt ug ba cv sah crh",
    "Mongolic": "mn bua",
    "Semitic": "ar he am ti mt arz",
    "Cushitic": "so om",
    "Chadic": "ha",
    "Bantu": "sw zu xh rw st tn ts ny sn ss nso lg rn ln kln nr ve",
    "Niger-Congo, other": "yo ig wo ff ak ee tw",
    "Austronesian": "id ms jv su tl fil ceb mg mi war haw sm to tet ilo bew",
    "Austroasiatic": "vi km sat",
    "Kra-Dai": "th lo",
    "Sino-Tibetan": "zh yue my bo wuu dz cmn brx mni",
    "Japonic": "ja",
    "Koreanic": "ko",
    "Dravidian": "ta te kn ml",
    "Kartvelian": "ka",
    "Quechuan": "qu quz",
    "American, other": "chr gn ay nv",
    "Constructed": "eo ia ie io",
    "Creoles": "pcm tpi jam ht",
}
UNKNOWN = "other"
_OF = {code: family for family, codes in _FAMILIES.items() for code in codes.split()}


def family_of(language: str) -> str:
    """Returns the family of a BCP 47 tag; a script or region is left out ("zh-Hant" is as "zh")."""
    return _OF.get(language, _OF.get(language.split("-")[0], UNKNOWN))
