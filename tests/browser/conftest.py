from typing import Any


def pytest_ignore_collect(collection_path: Any, config: Any) -> bool | None:
    r"""Only if asked for by name, as by ``make test-browser``."""
    return None if any('browser' in arg for arg in config.args) else True
