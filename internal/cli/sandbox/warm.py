def _cloche_seed():
    """Seeds the random generators again in each sandbox that continues from here: its host name is another."""
    import random
    import socket
    import sys

    from IPython import get_ipython

    host = socket.gethostname()

    def seed(*_):
        nonlocal host
        if socket.gethostname() == host:
            return
        host = socket.gethostname()
        random.seed()
        for module in ("numpy.random", "torch"):
            if module in sys.modules:
                getattr(sys.modules[module], "seed")()  # noqa: B009

    get_ipython().events.register("pre_run_cell", seed)


_cloche_seed()
del _cloche_seed
