#!/bin/sh
# Runs a build that receives half of a CPU and never more, even while other programs are busy.
# `hold` enforces this until the command ends, and returns the exit code of the command. Needs root.
exec slackline hold --cpu 50% -- make -j4 "$@"
