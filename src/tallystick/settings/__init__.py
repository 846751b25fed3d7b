"""Settings: the values that apply here and where each came from, trust, keys and places.

These names are the contract of this module; what else is in the package is internal.

- `load_settings` reads the configuration, and returns `Settings`; a `Setting` is one value with its
  source
- `open_model` opens the model that a name stands for
- `TrustStore` remembers which projects' files count in full
- `data_directory` and `cache_directory` are where files are kept, `ledger_path` is the user's
  ledger, and `config_directory` holds settings and keys
- `open_signing_key` returns the user's `SigningKey`; `read_public_key` reads a `PublicKey`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.settings.files import config_directory
    from tallystick.settings.models import open_model
    from tallystick.settings.paths import cache_directory, data_directory, ledger_path
    from tallystick.settings.settings import Setting, Settings, load_settings
    from tallystick.settings.signing import PublicKey, SigningKey, open_signing_key, read_public_key
    from tallystick.settings.trust import TrustStore

__all__ = [
    "PublicKey",
    "Setting",
    "Settings",
    "SigningKey",
    "TrustStore",
    "cache_directory",
    "config_directory",
    "data_directory",
    "ledger_path",
    "load_settings",
    "open_model",
    "open_signing_key",
    "read_public_key",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tallystick.settings.files": "config_directory",
            "tallystick.settings.models": "open_model",
            "tallystick.settings.paths": "cache_directory data_directory ledger_path",
            "tallystick.settings.settings": "Setting Settings load_settings",
            "tallystick.settings.signing": "PublicKey SigningKey open_signing_key read_public_key",
            "tallystick.settings.trust": "TrustStore",
        },
    )
