# In the guest: Linux' own NVMe/TCP initiator, with a path to every node of a volume, while the primary's node is killed. `settings` says SUBSYSTEM,
# PORTS and GROWN (bytes). The host looks for the files `ready` and `grow`.
set -ex
. ./settings
who="-q nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427 -I 1b4e28ba-2fa1-11d2-883f-0016d3cca427"
until_so() { for _ in $(seq 300); do "$@" && return; sleep 0.2; done; echo "never: $*"; false; }
for port in $PORTS; do
    nvme discover $who -t tcp -a 10.0.2.2 -s $port | grep -q "$SUBSYSTEM"
    nvme connect $who -t tcp -a 10.0.2.2 -s $port -n "$SUBSYSTEM" -k 5 --reconnect-delay=2
done
disk=/dev/nvme0n1
until_so test -b $disk
nvme list; nvme list-subsys
block=$(cat /sys/block/nvme0n1/queue/logical_block_size)

# Commands that Linux itself does not send.
head -c "$block" /dev/urandom > /tmp/block; dd if=/tmp/block of=$disk bs="$block" seek=3 conv=fsync
nvme compare $disk --start-block=3 --block-count=0 --data-size="$block" --data=/tmp/block
if nvme compare $disk --start-block=4 --block-count=0 --data-size="$block" --data=/tmp/block; then echo "not the same, and no failure"; exit 1; fi
nvme verify $disk --start-block=0 --block-count=1023
nvme write-zeroes $disk --start-block=3 --block-count=0
dd if=$disk of=/tmp/read bs="$block" skip=3 count=1; head -c "$block" /dev/zero > /tmp/zero; cmp /tmp/read /tmp/zero

mkfs.ext4 -q $disk; mount -t ext4 $disk /mnt; touch ready
fio --name=z --filename=/mnt/f --size=24M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1 --loops=2
nvme list-subsys
touch grow
is_grown() { [ $(($(cat /sys/block/nvme0n1/size) * 512)) = "$GROWN" ]; }
until_so is_grown
fstrim -v /mnt; umount /mnt; fsck.ext4 -fn $disk
if dmesg | grep -i "i/o error"; then exit 1; fi
nvme disconnect -n "$SUBSYSTEM"
