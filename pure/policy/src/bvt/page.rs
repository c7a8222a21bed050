//! The manual page.

/// What `slackline help bvt` says, before the fields.
pub(super) const PAGE: &str =
    "Every vCPU has a virtual clock that goes while the vCPU runs: slower the
heavier its weight. Of those awake, the one whose clock is earliest runs. So
weight = 2 gets twice the CPU of weight = 1, whoever else is there. Nobody is
promised a fixed amount, and no CPU idles while somebody on it could run.

Allowance: who runs goes on until its clock is ahead of the next one by the
allowance. A long allowance means few switches, a short one short waits. Two
vCPUs that never sleep are never further from their shares than the allowance.
Who is awake waits at most for the sum, over the others on its CPU, of allowance
x (1 + their weight / its own), if nobody warps.

Sleeping saves nothing up: who wakes starts at the earliest clock of those awake.

Warp: warp = \"20ms\" reads a clock 20 ms (at weight 1) earlier, so that its vCPU
runs the moment it wakes. It borrows: what it uses counts, so its share stays the
same. After warpl of CPU time at a stretch the warp pauses for warpu.

Each CPU has a line of its own, and a vCPU joins the CPU with the fewest.

Rules: \"xen-2.0\" decides as Xen 2.0 and 3.0.0 did, \"xen-3.0.2\" as Xen 3.0.2.
Shares are then set as in Xen: advance (mcuadv; 10 is usual, and twice as much is
half the share), warpback, warpvalue, warpl, warpu; weight and warp do not count.
Xen's known faults come with them; each can be switched on or off by itself:
  round_up        a stint is charged in units of 100us, rounded up: who runs 10us
                  at a time pays for ten times what it uses
  unit_slip       who is far behind does not catch up in one turn: turns last
                  about the allowance
  charge_again    (3.0.2) who is chosen again is charged again for its stretch
                  from the start: 4 to 1 becomes 2.3 to 1
  narrow          clocks wrap at 32 bits, and a sleeper whose clock is moved back
                  past zero waits for hours
  warp_underflow  a warp by more than the clock shows makes a vCPU the last, not
                  the first";
