#!/bin/sh
# Tries a package as a new user would, in a fresh Debian 12 that boots systemd in a container: install,
# enable, reserve, upgrade, remove, purge. Needs root, debootstrap and systemd-container.
#
#   packaging/trial.sh NEW.deb [OLD.deb]     # with OLD.deb, NEW.deb is installed over it
set -eu
new=$(realpath "$1")
old=$(realpath "${2:-$1}")
here=$(realpath "$(dirname -- "$0")")
base=${SLACKLINE_TRIAL_BASE:-/var/cache/slackline-trial/bookworm}
root=$(mktemp -d /var/tmp/slackline-trial.XXXXXX)
trap 'rm -rf "$root"' EXIT

if ! [ -e "$base/etc/debian_version" ]; then
    echo "making a fresh Debian 12 in $base"
    debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus bookworm "$base"
fi
cp -a "$base/." "$root"
mkdir "$root/opt/trial"
cp "$old" "$root/opt/trial/old.deb"
cp "$new" "$root/opt/trial/new.deb"
install -m 755 "$here/trial-inside.sh" "$root/opt/trial/run"
cat > "$root/etc/systemd/system/trial.service" <<UNIT
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/opt/trial/run
StandardOutput=file:/opt/trial/log
StandardError=inherit
ExecStopPost=/usr/bin/systemctl --no-block poweroff
UNIT
mkdir -p "$root/etc/systemd/system/default.target.wants"
ln -sf ../trial.service "$root/etc/systemd/system/default.target.wants/trial.service"

timeout 300 systemd-nspawn --quiet --keep-unit --register=no --capability=all \
    --directory "$root" --boot </dev/null >"$root/opt/trial/boot.log" 2>&1 || true
cat "$root/opt/trial/log"
tail -n 1 "$root/opt/trial/log" | grep -q '^trial: passed$'
