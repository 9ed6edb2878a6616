"""fourfold plans, runs and shows the pretraining of large language models.

One training step of one rank is an explicit program: executed, priced, verified and drawn from one object.

    import fourfold as ff

    ff.plan(model="llama3-8b", cluster="dgx-h100:16", sequence_length=8192, batch_tokens="1M")
    ff.simulate("preset:llama3-70b", {"layout.tp": 8}, cluster="dgx-h100:64")
    ff.verify("run.toml")
    ff.Program.of("run.toml")
    ff.train("run.toml", ranks=4)

Names are imported when they are first used.
"""

from importlib import import_module

TYPE_CHECKING = False
"""`typing.TYPE_CHECKING`, which would take longer to import than all of this file."""
if TYPE_CHECKING:
    from fourfold.api.planning import plan
    from fourfold.api.programs import RunProgram as Program
    from fourfold.api.simulation import simulate
    from fourfold.api.training import train
    from fourfold.api.verification import verify
    from fourfold.config import RunFailure, UserError
    from fourfold.hardware import Cluster, load_cluster

__version__ = "0.1.0"
__all__ = ["Cluster", "Program", "RunFailure", "UserError", "load_cluster", "plan", "simulate", "train", "verify"]

_WHERE = {
    "Cluster": "fourfold.hardware:Cluster",
    "Program": "fourfold.api.programs:RunProgram",
    "RunFailure": "fourfold.config:RunFailure",
    "UserError": "fourfold.config:UserError",
    "load_cluster": "fourfold.hardware:load_cluster",
    "verify": "fourfold.api.verification:verify",
}
_CALLABLE_PACKAGES = ("plan", "simulate", "train")


if not TYPE_CHECKING:  # for a type checker, a name that is not above is a mistake

    def __getattr__(name):
        if name in _CALLABLE_PACKAGES:
            return import_module(f"fourfold.{name}")
        if name in _WHERE:
            module, _, attribute = _WHERE[name].partition(":")
            return getattr(import_module(module), attribute)
        raise AttributeError(f"module 'fourfold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
