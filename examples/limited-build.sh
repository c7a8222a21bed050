#!/bin/sh
# Runs a build with at most half of one CPU, and no less while others are busy: `hold` enforces both
# until the command ends, and hands its exit code on. Needs root.
exec slackline hold --cpu 50% -- make -j4 "$@"
