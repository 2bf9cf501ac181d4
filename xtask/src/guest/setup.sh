# The rest of the boot, on the host's files: a soft-RoCE device, the command, its end. The host puts in front what it
# knows: $mark, $modules, $mtu, and the functions `mount_shares` and `job PREFIX...`. File 3 is the command's standard output on the host and
# 4 its standard error; a line behind the mark is for the host alone.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

note() { printf '%s%s\n' "$mark" "$*" >&3; }

step() {
    "$@" && return
    note "failed $*"
    # The first program may not end: the kernel would panic, and the reason would scroll away.
    while :; do sleep 60; done
}

share() {
    mkdir -p "$2"
    # Metadata and writes go to the host at once, so nothing is lost when the guest is ended.
    step mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=mmap "$1" "$2"
}

step mount -t tmpfs tmp /tmp
mkdir -p /dev/shm /dev/pts /lib/modules
step mount -t tmpfs shm /dev/shm
step mount -t devpts -o ptmxmode=666 devpts /dev/pts
step mount -t cgroup2 cgroup2 /sys/fs/cgroup
for name in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -sf "/proc/self/${name#*:}" "/dev/${name%:*}"; done
mount_shares
step mount --bind "$modules" /lib/modules

for module in rdma_rxe ib_uverbs rdma_ucm dummy fuse; do step modprobe "$module"; done
step ip link set lo up
step ip link add d0 mtu "$mtu" type dummy
# As on real Ethernet, where nobody answers for addresses that nobody has.
step ip link set d0 arp on
step ip addr add 10.9.0.1/24 dev d0
step ip link set d0 up
step rdma link add rxe0 type rxe netdev d0
ulimit -l unlimited

# The command may open /dev/stdout again, which a port would not bear: so it writes into pipes.
mkfifo /run/out /run/err
cat /run/out >&3 &
out=$!
cat /run/err >&4 &
err=$!
note ready
# What the command leaves running ends with its namespace, and then the pipes do.
(job unshare --pid --fork --mount-proc sh -c '"$@"; exit "$?"' job) </dev/null >/run/out 2>/run/err 3>&- 4>&-
status=$?
wait "$out" "$err"
sync
printf '%send\n' "$mark" >&4
note "exit $status"
while :; do sleep 60; done
