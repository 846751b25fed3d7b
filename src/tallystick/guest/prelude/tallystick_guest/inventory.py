"""Which standard modules are imported into the image, so that sessions get them for nothing."""

import importlib

_PRELOADED = """
_strptime abc annotationlib argparse array ast asyncio base64 binascii bisect builtins calendar
cmath codecs collections collections.abc colorsys concurrent.futures concurrent.futures.thread
configparser contextlib contextvars copy csv dataclasses datetime decimal difflib dis doctest
email.message email.parser encodings.ascii encodings.cp1252 encodings.cp437 encodings.hex_codec
encodings.idna encodings.iso8859_15 encodings.latin_1 encodings.punycode
encodings.raw_unicode_escape encodings.rot_13 encodings.unicode_escape encodings.utf_16
encodings.utf_16_be encodings.utf_16_le encodings.utf_32 encodings.utf_7 encodings.utf_8_sig enum
fnmatch fractions functools gc getpass gettext glob graphlib gzip hashlib heapq hmac html
html.entities html.parser http http.client importlib.abc importlib.machinery importlib.metadata
importlib.resources importlib.resources.abc importlib.util inspect io ipaddress itertools json
json.tool keyword linecache locale logging marshal math mimetypes numbers operator optparse os
pathlib pickle pkgutil platform pprint queue random re reprlib runpy sched secrets selectors shlex
shutil signal socket sqlite3 stat statistics string string.templatelib stringprep struct subprocess
symtable sys tempfile textwrap threading time timeit token tokenize tomllib traceback types typing
unicodedata unittest unittest.mock urllib.error urllib.parse urllib.request uuid warnings weakref
xml.dom.minidom xml.etree.ElementTree zipfile zipimport zlib zoneinfo
""".split()


def preload() -> None:
    """Import them all. One that fails would be missing in every session: it stops the build."""
    for name in _PRELOADED:
        importlib.import_module(name)
