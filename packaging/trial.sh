#!/bin/sh
# Tests a package as a new user would use it, in a VM with a fresh Debian 12: install, enable,
# reserve, upgrade, purge. Needs root, debootstrap and QEMU. The VM is emulated, so the test takes
# some minutes.
#
#   packaging/trial.sh NEW.deb [OLD.deb]     # with OLD.deb, NEW.deb is installed over it
set -eu
new=$(realpath "$1")
old=$(realpath "${2:-$1}")
here=$(realpath "$(dirname -- "$0")")
base=${SLACKLINE_TRIAL_BASE:-/var/cache/slackline-trial/bookworm}
work=$(mktemp -d /var/tmp/slackline-trial.XXXXXX)
trap 'rm -rf "$work"' EXIT
root=$work/root

if ! [ -e "$base/etc/debian_version" ]; then
    echo "making a fresh Debian 12 in $base"
    debootstrap --variant=minbase bookworm "$base" \
        --include=systemd,systemd-sysv,dbus,procps,linux-image-cloud-amd64,initramfs-tools
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
ExecStopPost=/usr/bin/systemctl --force poweroff
UNIT
mkdir -p "$root/etc/systemd/system/default.target.wants"
ln -sf ../trial.service "$root/etc/systemd/system/default.target.wants/trial.service"
mke2fs -q -t ext4 -d "$root" "$work/disk" 2G

# The VM is emulated, because Debian's kernel does not boot under every KVM, for example nested KVM.
timeout 900 qemu-system-x86_64 -accel tcg -m 1024 -smp 2 -display none -no-reboot \
    -serial "file:$work/console" -kernel "$root/vmlinuz" -initrd "$root/initrd.img" \
    -drive "file=$work/disk,if=virtio,format=raw" -append "root=/dev/vda rw console=ttyS0 quiet" ||
    tail -n 20 "$work/console"
debugfs -R "cat /opt/trial/log" "$work/disk" > "$work/log" 2>/dev/null
cat "$work/log"
tail -n 1 "$work/log" | grep -q '^trial: passed$'
