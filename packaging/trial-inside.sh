#!/bin/sh
# `trial.sh` runs this script inside the VM, as root. The last line of output is `trial: passed` if
# all steps succeeded.
set -eux

installed() { dpkg -L slackline 2>/dev/null; }

apt-get install -y --no-install-recommends /opt/trial/old.deb
systemd-analyze verify slackline.service slackline.socket
slackline doctor || [ $? -eq 3 ]
systemctl enable --now slackline
slackline list

sleep 1000 &
slackline reserve kept --slice 1ms --period 50ms --exact --for "pid:$!"
slackline list | grep 'kept.*active'

# The upgrade restarts the daemon, which then enforces the existing reservation again.
dpkg --install --force-confnew /opt/trial/new.deb
systemctl is-active slackline
for _ in 1 2 3 4 5 6 7 8 9 10; do
    slackline list | grep -q 'kept.*active' && break
    sleep 1
done
slackline list | grep 'kept.*active.*1ms!'
slackline log | grep adopted

slackline release kept

# A killed daemon leaves a `deadline` reservation to the kernel, and systemd starts the next daemon
# at once. Without a next daemon, a timer ends the reservation.
mkdir /etc/systemd/system/slackline.service.d
cat > /etc/systemd/system/slackline.service.d/keep.conf <<UNIT
[Service]
ExecStart=
ExecStart=/usr/bin/slackline serve --on-death keep --keep-for 30s
UNIT
systemctl daemon-reload
systemctl restart slackline
sleep 1000 &
sleeper=$!
slackline reserve busy --slice 1ms --period 50ms --exact --enforce deadline --for "pid:$sleeper"
chrt -p $sleeper | grep SCHED_DEADLINE
systemctl kill --signal KILL --kill-whom main slackline
sleep 10
systemctl is-active slackline
slackline list | grep 'busy.*active'
chrt -p $sleeper | grep SCHED_DEADLINE
printf '[Service]\nRestart=no\n' > /etc/systemd/system/slackline.service.d/restart.conf
systemctl daemon-reload
systemctl kill --signal KILL --kill-whom main slackline
sleep 10
chrt -p $sleeper | grep SCHED_DEADLINE
systemctl is-active slackline-kept.timer
sleep 30
chrt -p $sleeper | grep SCHED_OTHER
if systemctl is-active slackline-kept.timer; then exit 1; fi
rm -r /etc/systemd/system/slackline.service.d
systemctl daemon-reload
systemctl start slackline
slackline release busy

man_pages=$(installed | grep -c '/man1/slackline')
[ "$man_pages" -gt 20 ]
installed > /opt/trial/files

apt-get purge -y slackline
if systemctl is-active slackline; then exit 1; fi
while read -r file; do
    ! [ -f "$file" ] || { echo "left behind: $file"; exit 1; }
done < /opt/trial/files
ls -l /var/lib/slackline/ledger.db
set +x
echo "trial: passed"
