#!/bin/bash
# nvme-fail-over.sh DIR LOCKSTEP: Linux' own NVMe/TCP initiator, with two paths to a volume, while the node of one of them is killed.
# DIR: what initrd.sh made. LOCKSTEP: the program, with lockstepd beside it.
set -eu
dir=$1 lockstep=$2 home=$(mktemp -d) here=$(dirname "$(readlink -f "$0")"); export LOCKSTEP_DIR=$home/cluster
"$lockstep" dev up --nodes 3 --detach >/dev/null; pids=
trap '"$lockstep" dev down >/dev/null; kill $pids 2>/dev/null; rm -rf "$home"' EXIT
"$lockstep" resource create web --size 256MiB --replicas 3 >/dev/null
places=$("$lockstep" resource show web | awk '$1 == "nvme" { print $4 }')
subsystem=$(head -1 <<<"$places" | cut -d/ -f4) port=44200; mkdir "$home/share"
for address in $(cut -d/ -f3 <<<"$places"); do
    port=$((port + 1)); socat "TCP-LISTEN:$port,bind=127.0.0.1,fork,reuseaddr" "TCP:$address" & pids="$pids $!"
done
cat > "$home/share/run" <<I
set -ex
who="-q nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427 -I 1b4e28ba-2fa1-11d2-883f-0016d3cca427"
nvme discover \$who -t tcp -a 10.0.2.2 -s 44201
for port in 44201 44202; do nvme connect \$who -t tcp -a 10.0.2.2 -s \$port -n $subsystem -k 5 --reconnect-delay=2; done
sleep 1; nvme list; nvme list-subsys
mkfs.ext4 -q /dev/nvme0n1; mount -t ext4 /dev/nvme0n1 /mnt; touch /host/ready
fio --name=z --filename=/mnt/f --size=24M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1 --loops=2
nvme list-subsys; fstrim -v /mnt; umount /mnt; fsck.ext4 -fn /dev/nvme0n1; ! dmesg | grep -i "i/o error"
nvme disconnect -n $subsystem
I
( until [ -e "$home/share/ready" ]; do sleep 0.2; done; sleep 3; "$lockstep" dev kill a ) & pids="$pids $!"
status=0; "$here/guest.sh" "$dir" "$home/share" 400 || status=$?
cat "$home/share/out"; exit $status
