"""PyTorch's files of tensors, read without running anything of them: both forms, and hostile files."""

import base64
import io
import os
import pickle
import struct
import zipfile
import zlib

import numpy as np
import pytest

from mural_lite.errors import UserError
from mural_tf.demo.torch_file import MAGIC, PROTOCOL, open_torch

# What torch.save of PyTorch 2.14 writes of the dictionary in `test_both_forms`, compressed, with and without
# `_use_new_zipfile_serialization`.
ARCHIVE = (
    "c-pO1-EZ4e6u+@kC%B~_8_=#TWqha5rM8naDck5~4GYO2S|g-"
    "rFOi#gwKX@+ac;Yhr%F@0!PEE$5D)B6n0Orj0Ma&Td)fm6iHav)(Vlj%-"
    "K4&^q|pjjxp91Re;@bwoa0qfOe2)dqC;aGoj`V2cfD<Av0-C7-"
    "@57>`Y5{0j2)p~4}9OLV=rj7<*&kq6FQAcULDJT<}FC&swqNdgHXo-VawOHu;;hsTIj5Ad48jYon|`-YulO(VlG$Bkj-tf)823(9"
    "YbWp4{ZE(yePv^M5usN70I>U+JcNJVaTqT$P`R*7hW+%Gqnryw=Oj>jA6urS0m6mjJia`?Gk@(`&W9rW6>5B#@&c-"
    "g7S%`unQ;56s0{G^Sy@Qbqn5zHaB6C;rk+JZuI!3qAePnB77+f(}Zt+KIWLgFl)h^RT6o$?K#(AE~atgvlZYif{`(tULz+;ci?R^"
    ")q!_n?7JA=v*7)zL<8m8B-"
    "rpl7wzujK3p@?rr3d;DRf|8^CJu&Td)ubwBSsir_r)Qd(**AC_|p{RD?ysEnrZhICns$p0t>|fT3tX=}vUBbQ{VRRJQV~W+waP@4"
    "NPlfDoOleN$}`o$jSt{z?#T+PJpugl&>ihCa(>96MC1^7G%%Zc&qT_E(uk<pY)d9IM&Bx6#~mn%K|_M+)^BOGRp6<r@4&PKbmf4N"
    "Rbwo`Lln*a>K{82Z`c=yr$iVeC89L+AV-"
    "r)W}0M|v1VpE6aws2KVu|G_}ay0b#QE|3qIJ7oTNfjXMJyZ8MR`D1E;qXpKHYUnxi68h(evW_mH&#30}nO}bzA&VmeG%Kv8X6VIZ"
    "MIp1#NVQu}_W~-G9iV-V)h-"
    "x%1^wUgN9Y$ae<KrJB)$A1_2=!~`!h!tas&L$vi^#OK85=0Q|+A<%71rFdNTO@W9V#;zgOht;|8E0Q{_iLY<x4g{^pQ&&;X*NwVl"
    "u-9pI)--(EGZVd(jnG@>Y_lDe#@l~O@d3Z-"
    "SGTq&y+wX~!u(PBwe)aA0aL|s1o?*7<8{8Q9y&u6kxjvsQ)zlV8rvH?yq$g2YC*IId!WD}caNFF6g4s}kRC)tQ57#>SRhZ`UdPj-"
    "z_2L4n;T<_ws$?9jZZkofYJT_UqEcO|X)p%^OvRG_&h{G0mY_e)t>_0rV$YYavKgQ}xh_5mpoJ_|#2K+by{`W#zH6>}GTUO$k9&("
    "twJ`m#T^-Q--O3|;f9N))p>>(+}3`hIpy)OWhF;1!"
)
PICKLES = (
    "c-"
    "n=MNpI6Y6vxL)5*TO+J7q0<!V*%)O=AhEDJm7xu*F<_L6++bwUM#&>`4$vm2ycad<G62`51f@u6zU}4m{hT3rb<+H`dI&`TgHAL-"
    "`X8etlm1Isf|W^SRnke)2=Xc@s#*DicC_aU>!)3hV)o6F&+;LI-OGPXb?vfZIIm`c4S)mPK(>yz6m0@!#_Vlub}8RslB?FNy^em~"
    "1Jy@<Rbdrdn#sh{6phF}2@EO&4VX?g~^%=(D)XW8Pi$T|t3VO^_;<gf|?JT@l5uSF`)V4-#s}e7)}nU0d)liDG-"
    "8QBW!stCR|(r?bI9&9Bh4AacZue3L@KnnfQ&ZyHNDEjF5lp+PZ=(e3pytm0Dv2Re)}nJHs9$P^}xfqwMTa1IGLY{E<y(>lz0DCzx"
    "?dE^AIwpEVosI)YrrD=w)L)pveM^n1O<S`s$QYvyhr=JjT(u7kPJ%rPH=#Q~x+w?QL=#6@#Vbt|H%pqMu`dOq`t2yzUfb%9?$f`c"
    "@`CGV{L%qMMpf6}f6D}cvB4NIRxvL|%%%l-"
    "q$w^lQTr=UiRm?i;V3Xj+zgRaXtV)NeOc_Cy$s@Rxvu+ExW5V4m&mPqF>1@x5oi|+Yn8LmNlyuCyj!H5rEo40#ftE(y$dz;fizYO"
    ";vc=K|XqjN7kM3pq(5G}rnpRkO+KW-"
    "9C9O`2ufS_*(I(?QX_E(Jl{}Ot8>PvAmk*BNGEQy$(1vJV+Vnr?gnUE$jz(4pDX++Te22@w0q$(^fB"
)


def content_of(text):
    return zlib.decompress(base64.b85decode(text))


@pytest.mark.parametrize("text", [ARCHIVE, PICKLES], ids=["archive", "pickles"])
def test_both_forms(text, tmp_path):
    (tmp_path / "x.pth").write_bytes(content_of(text))
    file = open_torch(tmp_path / "x.pth")
    expected = {
        "a": [[0, 1, 2], [3, 4, 5]],
        "b": [[0, 3], [1, 4], [2, 5]],  # float16, transposed by its strides
        "n": 7,
        "view": [2, 3, 4, 5],  # of arange(10)
        "shared": [4, 6, 8],  # every second one of the same storage
        "p": [1, 1],  # a parameter
    }
    assert file.shapes == {name: np.shape(value) for name, value in expected.items()}
    for name, value in expected.items():
        np.testing.assert_array_equal(file.read(name), np.array(value, np.float32))


class Call:
    """Pickled as a call of `function`."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def named(module, name):
    """A pickle's instruction that looks a name up."""
    return f"c{module}\n{name}\n".encode()


def tensor(storage, offset, shape, strides):
    """The instructions for a tensor whose storage is (type, key, size)."""
    dtype, key, size = storage
    described = b"(X\x07\0\0\0storage" + named("torch", dtype) + text(key) + text("cpu") + number(size) + b"tQ"
    numbers = b"".join(number(n) for n in shape), b"".join(number(n) for n in strides)
    return (
        named("torch._utils", "_rebuild_tensor_v2") + b"(" + described + number(offset)
        + b"(" + numbers[0] + b"t(" + numbers[1] + b"t\x89" + named("collections", "OrderedDict") + b")RtR"
    )  # fmt: skip


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value):
    return pickle.dumps(value, 2)[2:-1]


def in_dictionary(instructions):
    return b"\x80\x02}" + text("x") + instructions + b"s."


def archive_of(instructions, storages=(("0", b"\0" * 16),), pickled="x/data.pkl", others=()):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(pickled, instructions)
        for name, data in [*((f"x/data/{key}", data) for key, data in storages), *others]:
            archive.writestr(name, data)
    return file.getvalue()


STORAGE = struct.pack("<q", 4) + b"\0" * 16


def pickles_of(instructions, keys=("0",), storages=STORAGE, system=None):
    head = [pickle.dumps(value, 2) for value in (MAGIC, PROTOCOL, system or {"little_endian": True})]
    return b"".join([*head, instructions, pickle.dumps(list(keys), 2), storages])


FOUR = ("FloatStorage", "0", 4)
GOOD = in_dictionary(tensor(FOUR, 0, [2, 2], [2, 1]))
RUNS = pickle.dumps({"x": Call(os.system, "touch RAN")}, 2)
REFUSED = {  # what a file does: its content, and what the message says
    "calls a program": (archive_of(RUNS), "system"),
    "calls a program, in the older form": (pickles_of(RUNS), "system"),
    "calls a program before the tensors": (RUNS, "system"),
    "evaluates": (archive_of(pickle.dumps({"x": Call(eval, "open('RAN', 'w')")}, 2)), "eval"),
    "imports": (archive_of(in_dictionary(named("mural_lite.files", "write_whole"))), "mural_lite.files.write_whole"),
    "is a module of PyTorch": (archive_of(in_dictionary(named("torch.nn", "Linear"))), "torch.nn.Linear"),
    "reaches through a name with points": (archive_of(in_dictionary(named("collections", "abc.sys"))), "abc.sys"),
    "begins behind its storage": (archive_of(in_dictionary(tensor(FOUR, 4, [1], [1]))), "storage of 4 numbers"),
    "begins before its storage": (archive_of(in_dictionary(tensor(FOUR, -4, [1], [1]))), "whole numbers"),
    "steps out of its storage": (archive_of(in_dictionary(tensor(FOUR, 0, [2], [4]))), "storage of 4 numbers"),
    "repeats one number without end": (archive_of(in_dictionary(tensor(FOUR, 0, [2**40], [0]))), "4 numbers"),
    "claims more than its storage has": (
        archive_of(in_dictionary(tensor(("FloatStorage", "0", 2**40), 0, [2**40], [1]))),
        "storage 0",
    ),
    "claims more, in the older form": (
        pickles_of(in_dictionary(tensor(("FloatStorage", "0", 2**40), 0, [2**40], [1]))),
        "storage 0",
    ),
    "names a storage that is not there": (archive_of(GOOD, storages=()), "storage 0"),
    "names a file elsewhere": (
        archive_of(in_dictionary(tensor(("FloatStorage", "../../etc/passwd", 4), 0, [4], [1]))),
        "missing",
    ),
    "is cut off, in the older form": (pickles_of(GOOD)[:-3], "cut off"),
    "lacks a storage, in the older form": (pickles_of(GOOD, keys=()), "missing"),
    "has a storage too many": (pickles_of(GOOD, keys=("1", "0")), "'1'"),
    "is cut off": (archive_of(GOOD)[:-30], "damaged"),
    "is big-endian": (archive_of(GOOD, others=[("x/byteorder", b"big")]), "big-endian"),
    "is big-endian, in the older form": (pickles_of(GOOD, system={"little_endian": False}), "big-endian"),
    "holds no tensors": (archive_of(pickle.dumps([1, 2], 2)), "dictionary of tensors"),
    "holds numbers beside tensors": (archive_of(pickle.dumps({"epoch": 3}, 2)), "dictionary of tensors"),
    "is another archive": (archive_of(GOOD, pickled="x/code.py"), "no data.pkl"),
    "is a long pickle": (archive_of(b"\x80\x02" + b"N0" * 2**23 + b"N."), "larger"),
    # As a dictionary's key such a tuple ended the process, and such an index allocated gigabytes.
    "has tuples in tuples": (archive_of(b"\x80\x02})" + b"\x85" * 10**6 + b"K\x01s."), "16 containers"),
    "has tuples that repeat each other": (
        archive_of(b"\x80\x02})" + b"".join(b"\x85q%ch%c" % (i, i) for i in range(100)) + b"K\x01s."),
        "16 containers",
    ),
    "has tuples in tuples, in the older form": (b"\x80\x02})" + b"\x85" * 10**6 + b"K\x01s.", "16 containers"),
    "numbers an object that there is not": (archive_of(b"\x80\x02}r" + struct.pack("<I", 2**27) + b"."), "up to 134"),
    "has opcodes of other programs": (archive_of(b"\x80\x04}\x94."), "no MEMOIZE"),
    "takes more than there is": (archive_of(b"\x80\x02s."), "damaged"),
    "is empty": (b"", "damaged"),
    "is a text": (b"weights", "damaged"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_and_damaged_files(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content, said = REFUSED[name]
    (tmp_path / "x.pth").write_bytes(content)
    with pytest.raises(UserError) as error:
        open_torch(tmp_path / "x.pth")
    assert said in str(error.value) and "x.pth" in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "RAN").exists()


def test_the_smallest_files_of_both_forms_are_read(tmp_path):
    """So what the table above changes is why its files are refused."""
    for number_of, content in enumerate([archive_of(GOOD), pickles_of(GOOD)]):
        path = tmp_path / f"{number_of}.pth"
        path.write_bytes(content)
        np.testing.assert_array_equal(open_torch(path).read("x"), np.zeros([2, 2]))
