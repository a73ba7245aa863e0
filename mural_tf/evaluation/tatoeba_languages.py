"""The groups of languages over which papers average Tatoeba's accuracy, by the codes of its files (ISO 639-3)."""

from __future__ import annotations

# Multilingual USE (Yang et al., 2020).
MUSE_14 = tuple("ara cmn fra deu ita jpn kor nld pol por rus spa tha tur".split())
# XTREME (Hu et al., 2020).
XTREME_36 = tuple(
    """ara heb vie ind jav tgl eus mal tam tel afr nld deu ell ben hin mar urd pes fra ita por spa bul rus jpn kat kor
    tha swh cmn kaz tur est fin hun""".split()
)
# The languages LASER was trained on, as its README lists them, that are in the set. Papers speak of 82; which of these
# 83 they leave out is not written anywhere.
LASER_83 = tuple(
    """afr sqi amh ara hye aze eus bel ben ber bos bre bul cat dtp khm cbk cmn kzj cor hrv ces dan nld mhr epo est fin
    fra glg kat deu ell heb hin hun isl ido ind ina ile gle ita jpn kab kaz kor kur lvs lat lfn lit nds mkd zsm mal mar
    nob oci pes pol por ron rus srp slk slv spa swh swe tgl tam tat tel tha tur uig ukr urd uzb vie wuu yue""".split()
)
GROUPS = {"14": MUSE_14, "36": XTREME_36, "82": LASER_83}
