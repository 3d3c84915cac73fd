"""What a configuration says to the backend. The server reads it too, for `stubserve check`: no heavy imports here."""

from stubserve_stub.runtime.failure import Refusal


def check(config):
    """Raises Refusal for a configuration that the backend would not take."""
    factor_of(config)


def factor_of(config):
    """The parameter FACTOR, None if there is none. Raises Refusal."""
    text = config.get("parameters", {}).get("FACTOR", {}).get("string_value", "")
    try:
        return float(text) if text else None
    except ValueError:
        raise Refusal(f"parameter 'FACTOR' of model '{config['name']}' must be a number, got '{text}'") from None
