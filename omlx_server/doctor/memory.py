"""Checks whether the memory is enough for the model. Sizes are in bytes."""

from omlx_server.core.memory import ledger
from omlx_server.doctor.finding import Finding, fail, in_words, ok, warn
from omlx_server.doctor.software import Device
from omlx_server.settings import Settings

# Beside the weights there should be room for conversations and a step.
_LEAST_BESIDE = 500_000_000
_SHARE_BESIDE = 0.1


def limit_of(settings: Settings, device: Device) -> int:
    """Return the bytes that the server may use, by its own rule."""
    memory = settings.memory
    return ledger.limit_of(memory.limit, memory.reserve, device.ram, device.working_set)


def limit(settings: Settings, device: Device) -> Finding:
    size, ram = limit_of(settings, device), device.ram
    text = f"{in_words(size)} of {in_words(ram)} for models and conversations"
    if size > ram:
        fix = f"set memory.limit below {in_words(ram)}, or to auto"
        return fail("memory", f"memory.limit is {in_words(size)}, the RAM {in_words(ram)}", fix)
    if device.working_set and size > device.working_set:
        most = in_words(device.working_set)
        return warn("memory", f"{text}; the GPU works well up to {most}", "lower memory.limit")
    return ok("memory", text)


def wired(settings: Settings, device: Device) -> Finding:
    """Return the finding on what Metal may wire."""
    setting = settings.memory.wired
    size = ledger.wired_bytes(setting, limit_of(settings, device), device.working_set)
    if size:
        text = f"Metal may wire {in_words(size)}; Macs have panicked with wired memory"
        return warn("wired", text, "set memory.wired to off, unless you know that yours does not")
    reason = "memory.wired is off" if setting == "off" else "there is no Metal"
    return ok("wired", f"no memory is wired: {reason}")


def weights(name: str, nbytes: int, limit: int, ranks: int = 1) -> Finding:
    """Return the finding on `nbytes` of weights, which `ranks` machines share."""
    nbytes //= ranks
    what = name if ranks == 1 else f"one of {ranks} parts of {name}"
    text = f"{what} takes {in_words(nbytes)} of {in_words(limit)}"
    if nbytes > limit:
        fix = "a smaller or more quantised model, or a higher memory.limit"
        return fail("weights", f"{text}: no request could be served", fix)
    if limit - nbytes < max(_LEAST_BESIDE, _SHARE_BESIDE * limit):
        fix = "a smaller model, a higher memory.limit, or kv_cache.scheme"
        return warn("weights", f"{text}: little is left for conversations", fix)
    return ok("weights", f"{text}, {in_words(limit - nbytes)} are left for conversations")
