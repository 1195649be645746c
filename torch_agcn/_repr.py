from inspect import signature
from typing import Any


def changed_arguments(layer: Any, base: type,
                      defaults: dict[str, Any]) -> list[str]:
    r"""The constructor arguments that differ from their default, where
    :obj:`defaults` replaces defaults of :obj:`None`.
    """
    found: dict[str, str | None] = {}
    for cls in type(layer).__mro__:
        if not issubclass(cls, base):
            break
        for name, parameter in signature(cls.__init__).parameters.items():
            default = parameter.default
            if default is parameter.empty:
                found[name] = None  # always shown
            if name in found:
                continue
            value = getattr(layer, f'_{name}', getattr(layer, name, None))
            value = value is not None if name == 'bias' else value
            default = defaults.get(name) if default is None else default
            found[name] = None if value == default else f'{name}={value!r}'
    if layer.flow != 'source_to_target':
        found['flow'] = f"flow='{layer.flow}'"
    return [text for text in found.values() if text is not None]
