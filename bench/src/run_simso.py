"""Runs SimSo for the given number of simulated seconds.

Prints the number of calls of each kind, and the seconds that the run took.
"""

import contextlib
import io
import sys
import time

from simso.configuration import Configuration
from simso.core import Model

configuration = Configuration()
seconds = float(sys.argv[1])
configuration.duration = int(seconds * 1000 * configuration.cycles_per_ms)
for i in range(8):
    period = 10 + 3 * i
    configuration.add_task(name=f"t{i}", identifier=i + 1, period=period, activation_date=0,
                           wcet=1 + 0.1 * i, deadline=period)
configuration.add_processor(name="cpu", identifier=1)
configuration.scheduler_info.clas = "simso.schedulers.EDF"
configuration.check_all()
# The output of SimSo is discarded, because printing it would take time.
with contextlib.redirect_stdout(io.StringIO()):
    model = Model(configuration)
    start = time.perf_counter()
    model.run_model()
    took = time.perf_counter() - start
calls = model.results.scheduler
print(calls.schedule_count, calls.activate_count, calls.terminate_count, took)
