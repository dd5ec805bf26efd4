"""Does a method keep the rules? A suite of small checks for the methods in this package and for one in your
own file.

    from equipoise.testing import check_method
    check_method("my_method.py:Mine")

or, as tests of their own:

    @pytest.mark.parametrize(("name", "check"), method_checks("my_method.py:Mine"))
    def test_mine(name, check):
        check()

Every check trains the small CNN on a few dozen generated images, in a temporary folder, on the CPU. A failure
is an AssertionError that names the method, the check and what differed. `CHECKS` has them all; the docstring
of each is its rule.
"""

from equipoise.testing.bench import Bench
from equipoise.testing.federations import ODD, ORDINARY, write_federation
from equipoise.testing.suite import CHECKS, bench_checks, check_method, method_checks
from equipoise.testing.traces import Answer, Tap, Trace, raw, same_bits

__all__ = [
    "CHECKS",
    "ODD",
    "ORDINARY",
    "Answer",
    "Bench",
    "Tap",
    "Trace",
    "bench_checks",
    "check_method",
    "method_checks",
    "raw",
    "same_bits",
    "write_federation",
]
