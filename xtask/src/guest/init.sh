#!/bin/busybox sh
# The guest's first program, in the initial RAM file system. The host's files become its root, beneath a layer in memory
# that takes what is written; then the script that the host sends takes over.
busybox mkdir -p /proc /sys /dev /host /layer /new
busybox mount -t devtmpfs dev /dev
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
# Their order is the order in which they need each other.
for module in /modules/*; do busybox insmod "$module" || echo "init: no module $module"; done

# A port shows itself when the host has said what it is for.
waited_s=0
until [ -e /dev/vport0p1 ] && [ -e /dev/vport0p2 ] || [ "$waited_s" = 20 ]; do
    busybox sleep 1
    waited_s=$((waited_s + 1))
done
# Ports can be open once only: these stay open to the end.
exec 3<>/dev/vport0p1 4>/dev/vport0p2

# The host leaves its files as they are while we run, so what was read once is true.
busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose root /host
busybox mount -t tmpfs layer /layer
busybox mkdir /layer/files /layer/work
busybox mount -t overlay -o lowerdir=/host,upperdir=/layer/files,workdir=/layer/work root /new
for folder in dev proc sys; do
    busybox mkdir -p "/new/$folder"
    busybox mount --move "/$folder" "/new/$folder"
done
busybox mkdir -p /new/run
busybox mount -t tmpfs run /new/run

script_len=$(busybox sed 's/.*sinew.script_len=\([0-9]*\).*/\1/' /new/proc/cmdline)
busybox head -c "$script_len" <&3 >/new/run/guest.sh
exec busybox switch_root /new /bin/sh /run/guest.sh
