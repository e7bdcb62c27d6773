"""Whether the server looks at the machine's memory, and when unused models leave."""

from omlx_server.core.memory.pressure import MemoryPressure, PressureLevel
from omlx_server.process.apply import change_instances
from omlx_server.settings import Settings
from omlx_server.wiring.model_factory import InstanceFactory


def settings(**memory: object) -> Settings:
    return Settings.of({"memory": memory, "cache": {"hot_cache_only": True}})


def test_it_looks_unless_it_is_switched_off_which_counts_at_once() -> None:
    instances = InstanceFactory(settings())
    assert instances.watches_machine()
    change_instances(instances, settings(pressure="off"))
    assert not instances.watches_machine()


def test_the_account_shows_what_the_machine_takes() -> None:
    account = InstanceFactory(settings(limit=1000)).account
    account.change_pressure(MemoryPressure(PressureLevel.WARN, taken=300))
    assert account.held().machine == 300 and account.held().held == 0
    account.change_pressure(MemoryPressure())
    assert account.held().machine == 0
