r"""How layers show themselves."""
from inspect import signature
from typing import Any


def changed_arguments(layer: Any, base: type,
                      defaults: dict[str, Any]) -> list[str]:
    r"""The optional arguments of all constructors up to :obj:`base` that are
    not at their default, as they are passed; where the default is
    :obj:`None`, :obj:`defaults` says what it stands for.
    """
    found: dict[str, str | None] = {}
    for cls in type(layer).__mro__:
        if not issubclass(cls, base):
            break
        for name, parameter in signature(cls.__init__).parameters.items():
            default = parameter.default
            if default is parameter.empty:
                found[name] = None  # It is shown in any case.
            if name in found:
                continue
            value = getattr(layer, f'_{name}', getattr(layer, name, None))
            value = value is not None if name == 'bias' else value
            default = defaults.get(name) if default is None else default
            found[name] = None if value == default else f'{name}={value!r}'
    if layer.flow != 'source_to_target':
        found['flow'] = f"flow='{layer.flow}'"
    return [text for text in found.values() if text is not None]
