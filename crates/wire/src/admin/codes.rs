//! Every error that a node can answer with, in one table.
//!
//! Always: a number keeps its meaning for ever; one that is no longer used is not given again.
//! `docs/errors.md` is written from this table, and a test compares the two.

/// One kind of error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Code {
    /// As in `LS-0042`.
    pub code: &'static str,
    /// What it is, in a few words.
    pub title: &'static str,
    /// What usually lies behind it.
    pub cause: &'static str,
    /// What to do.
    pub remedy: &'static str,
    /// What the command line ends with: one of the `EXIT_` numbers.
    pub exit: u8,
}

/// Refused, or failed for a reason that lies in the state of things, the machine or the program.
pub const EXIT_FAILED: u8 = 1;
/// What was asked makes no sense.
pub const EXIT_USAGE: u8 = 2;
/// There is no such thing.
pub const EXIT_ABSENT: u8 = 3;
/// It was not done in time.
pub const EXIT_TIMEOUT: u8 = 4;

macro_rules! codes {
    ($($name:ident = $code:literal, $exit:ident, $title:literal, $cause:literal, $remedy:literal;)*) => {
        $(
            #[doc = concat!($title, ".")]
            pub const $name: Code = Code {
                code: $code,
                title: $title,
                cause: $cause,
                remedy: $remedy,
                exit: $exit,
            };
        )*
        /// All of them, ascending by number.
        pub const CODES: &[Code] = &[$($name),*];
    };
}

codes! {
    MALFORMED_REQUEST = "LS-0001", EXIT_USAGE, "The request cannot be understood",
        "The line is not valid JSON, lacks a field, or has one that this version does not know.",
        "Compare it with docs/formats/admin.md; use a command line of the node's own version.";
    OTHER_VERSION = "LS-0002", EXIT_USAGE, "The request is of another version",
        "The client and the node are of different releases.",
        "Use the client that was installed with the node.";
    INTERNAL = "LS-0003", EXIT_FAILED, "The node failed at something that should not fail",
        "A fault in the program.",
        "Report it with the node's log; the resource's data is not touched by it.";
    BUSY = "LS-0004", EXIT_FAILED, "Another operation on the resource is not finished",
        "Operations on one resource are done one after the other, and a few may wait.",
        "Try again when it is done; the status shows what it waits for.";
    STOPPING = "LS-0005", EXIT_FAILED, "The node is stopping",
        "It was told to stop and takes no new work.",
        "Ask another node, or wait until this one is started again.";
    TIMEOUT = "LS-0006", EXIT_TIMEOUT, "The operation did not finish in time",
        "A peer does not answer, or a quorum is missing. The operation may still take effect.",
        "Look at the status: the reason is named there. Then ask again; operations may be repeated.";
    NO_RESOURCE = "LS-0010", EXIT_ABSENT, "There is no such resource on this node",
        "The name is misspelt, or the resource was not defined here.",
        "`lockstep status` lists what this node knows. `lockstep resource add-client NAME --node NODE` has a node know one that others have.";
    RESOURCE_EXISTS = "LS-0011", EXIT_FAILED, "The resource exists already",
        "It was defined or created before, with another identity or in another form, or its description on this node could not be read.",
        "Choose another name, or delete or forget the old one first; if the message names a file, correct that.";
    BAD_RESOURCE_FILE = "LS-0012", EXIT_USAGE, "The resource's description is wrong",
        "A key is misspelt, a value is beyond its limits, or two parts contradict each other.",
        "Correct what the message names; docs/formats/admin.md lists every key.";
    NOT_HERE = "LS-0013", EXIT_FAILED, "This node has no part in the resource that could do this",
        "The node is not listed among the resource's nodes, or is no member of it.",
        "Ask a node that is a member, or add this one.";
    NOT_CREATED = "LS-0014", EXIT_FAILED, "This node's part of the resource is not created yet",
        "The resource was defined, but no store was made for it here.",
        "If others use it: `lockstep resource remove-replica NAME --node NODE`, then `lockstep resource add-replica`. If nobody \
         does, because its making was interrupted: `lockstep resource delete`, then make it again.";
    IN_USE = "LS-0015", EXIT_FAILED, "The resource is in use",
        "Clients are connected, or this node is its primary.",
        "Disconnect the clients and demote it first.";
    STORE_NOT_EMPTY = "LS-0020", EXIT_FAILED, "Something is already in the store",
        "The file or device holds data or metadata, perhaps of another resource. A device is empty if it is zero at both ends.",
        "Check the path. If what is there may be lost, make the device zero (blkdiscard --zeroout), or say so with --force.";
    STORE_FAILED = "LS-0021", EXIT_FAILED, "The store cannot be made, opened or read",
        "The path does not exist, permission is missing, the disk is full or broken, or another \
         process holds it.",
        "Mend what the message names and try again.";
    STORE_TOO_SMALL = "LS-0022", EXIT_FAILED, "The store is too small",
        "Data and metadata together need more room than the device has.",
        "Enlarge the device or choose a smaller volume; the message names the size needed.";
    METADATA_DAMAGED = "LS-0023", EXIT_FAILED, "The metadata is damaged",
        "The disk returned something that was not written there, or went back to an older state.",
        "Replace the disk if it is to blame. Then have the copy made anew from the others: `lockstep resource remove-replica \
         NAME --node NODE`, then `lockstep resource add-replica NAME --node NODE --force`.";
    METADATA_TOO_NEW = "LS-0024", EXIT_FAILED, "The metadata is of a newer version",
        "A newer release has used this store.",
        "Install that release or a later one.";
    OTHER_STORE = "LS-0025", EXIT_FAILED, "The store belongs to another resource, node or cluster",
        "A path was changed, or a disk was moved; or a device has become larger or smaller, at whose end the metadata is.",
        "Put the right path in place, or give the device the size that it had.";
    MEMORY_REFUSED = "LS-0026", EXIT_FAILED, "Stores in memory are not allowed on this node",
        "A store in memory forgets everything at every stop.",
        "Use a file or a device; for a test, set allow_memory_store in node.toml.";
    STORE_MISSING = "LS-0027", EXIT_FAILED, "The store is not there",
        "Its file was deleted, or its disk is not mounted; or the copy was never made, because that was interrupted.",
        "Mount the disk and start the node again. If it is lost: `lockstep resource remove-replica NAME --node NODE`, then \
         `lockstep resource add-replica NAME --node NODE`.";
    STORE_UNLABELLED = "LS-0028", EXIT_FAILED, "The store's metadata is not where it should be",
        "A device has become larger or smaller, and metadata is at its end; or a path was changed, or a disk was moved. What is \
         there may be the volume's own content.",
        "Give the device the size that it had, or put the right path in place, and start the node again. For a copy on a device of \
         another size, while another copy is in sync: `lockstep resource remove-replica NAME --node NODE`, then `lockstep resource \
         add-replica NAME --node NODE --device PATH`, on one that is empty.";
    NO_QUORUM = "LS-0030", EXIT_FAILED, "Too few voters answer",
        "A majority has to answer, and half or more of the replicas and witnesses are down or cannot be reached.",
        "Bring them back. If they are lost for good, and only then: `lockstep explain NAME` says which copy loses least by \
         `lockstep resource force NAME --node NODE`.";
    OTHER_PRIMARY = "LS-0031", EXIT_FAILED, "Another node is primary and keeps it",
        "Its clients are using the resource.",
        "Ask that node: on its machine, or by naming its admin socket, too (`--admin`). If it is not to be primary any more: \
         disconnect its clients and demote it there.";
    NO_PRIMARY = "LS-0032", EXIT_FAILED, "The primary is not known or cannot be reached",
        "The link to it is broken, or none has been chosen yet.",
        "Look at the status, mend the link, ask again.";
    LAST_REPLICA = "LS-0033", EXIT_FAILED, "It would leave no replica in sync",
        "The replica concerned is the only one that holds every acknowledged write.",
        "Add another and wait until it is in sync.";
    ALREADY = "LS-0034", EXIT_FAILED, "It is so already",
        "The operation was done before, perhaps by somebody else.",
        "Nothing needs to be done.";
    NO_MEMBER = "LS-0035", EXIT_ABSENT, "There is no such member",
        "The node holds neither a replica of the resource nor is it a witness.",
        "The status lists the members.";
    TOO_MANY_MEMBERS = "LS-0036", EXIT_FAILED, "There are too many members",
        "A resource has at most 8 replicas, and 16 members with its witnesses.",
        "Remove one first.";
    NO_REPLICA = "LS-0037", EXIT_FAILED, "This node holds no replica of the resource",
        "The operation works on a node's own copy, and there is none.",
        "Ask a node that has one.";
    BAD_SIZE = "LS-0038", EXIT_USAGE, "The size is impossible",
        "It is zero, no multiple of the block, or larger than a store can be.",
        "Choose another size.";
    SHRINK = "LS-0039", EXIT_FAILED, "The volume would become smaller",
        "What lies beyond the new end would be lost.",
        "Shrink what is on the volume first, then ask with --force.";
    NO_NODE = "LS-0040", EXIT_ABSENT, "There is no such node",
        "The number or name is not among the resource's nodes. No node answers so any more.",
        "Name a node that is listed, or define the resource anew with it.";
    NODE_UNREACHED = "LS-0041", EXIT_FAILED, "The node cannot be reached",
        "Its process is not running, or its admin socket is elsewhere or closed to this user. No node answers so any more.",
        "Start it, or name the socket with --admin.";
    BAD_OPTION = "LS-0042", EXIT_USAGE, "The option's value is impossible",
        "It is beyond its limits, or does not go with another option.",
        "Choose a value that the message names.";
    REPLICA_IN_USE = "LS-0043", EXIT_FAILED, "The replica cannot be read off line while it is in use",
        "Writes go on, so a hash of it would mean nothing.",
        "Disconnect its clients, wait until the status shows no request in flight, ask again.";
    UNSUPPORTED = "LS-0044", EXIT_USAGE, "This node cannot do that",
        "The release or the machine lacks what it needs.",
        "The message names it.";
    REPLY_TOO_LONG = "LS-0045", EXIT_USAGE, "The answer does not fit into one line",
        "There are too many resources for one status.",
        "Ask for each resource by its name.";
    PEER_REFUSED = "LS-0046", EXIT_FAILED, "A peer refused",
        "It runs another release, belongs to another cluster, or was told something else. No node answers so any more.",
        "The message names the peer and its reason; mend it there.";
    BAD_IDENTITY = "LS-0047", EXIT_FAILED, "The node's settings or certificate cannot be used",
        "A file is missing, a key does not belong to its certificate, or a value is misspelt.",
        "Mend what the message names and ask again; until then the node goes on with what it had.";
    NO_SPLIT_BRAIN = "LS-0048", EXIT_FAILED, "There is no split brain with that node",
        "The node is not connected, follows the same history, or its side was given up already.",
        "Bring the node back and look at the status: it names those whose history went another way.";
    OWN_SIDE = "LS-0049", EXIT_USAGE, "A node does not discard its own side",
        "The node that was asked is the one whose side is to be given up.",
        "Ask a node of the side that is to go on.";
    RESIZE_REPLACED = "LS-0050", EXIT_FAILED, "Another resize took its place",
        "While the volume was growing it was asked to have another size.",
        "Look at its size with `lockstep resource show`, and ask again if it is not what you want.";
    TOO_FEW_REPLICAS = "LS-0051", EXIT_FAILED, "There would be fewer replicas than in-sync-min asks for",
        "Requests wait while fewer replicas than that are in sync.",
        "Add a replica and wait until it is in sync, or lower the number: `lockstep resource set-options NAME --in-sync-min N`.";
    VERIFY_STOPPED = "LS-0052", EXIT_FAILED, "The comparison of the replicas is stopped",
        "An operator stopped it, or none runs.",
        "Go on with it: `lockstep resource verify NAME`; or begin anew: `lockstep resource verify NAME --anew`.";
    OLD_RELEASE = "LS-0053", EXIT_FAILED, "A node's release is older than what the others do",
        "Every member could do more than this node can, and they do: the resource's feature level is above its own.",
        "Install the release that the others run on the node, and start it again.";
    NOT_A_CLIENT = "LS-0054", EXIT_FAILED, "That node is no client of the resource",
        "It is a member, or the very node that was asked.",
        "Remove a member first: `lockstep resource remove-replica`. What a node itself still holds goes by `lockstep resource forget NAME --node NODE`.";
    MAY_HAVE_FORKED = "LS-0055", EXIT_FAILED, "It is not known whether the node goes on alone",
        "Its disk failed while the fork was being written to it, or it lost its majority before that was decided.",
        "Force no other node before this one was started again: `lockstep status` then says whether it is on a fork.";
    VERIFY_PARTIAL = "LS-0056", EXIT_FAILED, "Not every replica was compared",
        "Only replicas that are in sync are; one was not for all or a part of the time. What was compared is the same now.",
        "Wait for it (`lockstep wait NAME --for in-sync`), then begin anew: `lockstep resource verify NAME --anew --wait`.";
    NO_COPY = "LS-0057", EXIT_FAILED, "A copy in sync is waited for",
        "No replica that holds every acknowledged write can be used: its node is down or cannot be reached, or lost its disk's \
         cache. Voters are not what is missing.",
        "Bring one back; `lockstep explain NAME` names them. If they are lost for good, and only then: it says which copy loses \
         least by `lockstep resource force NAME --node NODE`.";
    NOTHING_MISSING = "LS-0060", EXIT_FAILED, "No request of that node waits for nodes that are missing",
        "It has a quorum and a good copy in reach, or a primary that it can ask, where the request waits if anywhere.",
        "See `lockstep explain NAME`; if the primary lacks a quorum, ask the primary's node.";
    OTHER_IDENTITY = "LS-0065", EXIT_FAILED, "The node knows another resource of that name",
        "It was away while a resource was deleted and another made in its name, or it is the other way round.",
        "`lockstep status NAME` shows both, with their identities.";
    BAD_SETTINGS = "LS-0070", EXIT_USAGE, "A node cannot start with these settings",
        "A key of node.toml is misspelt or beyond its limits, a file that it names is missing, or a key does not belong to \
         its certificate.",
        "Mend what the message names and start the node again; docs/node.md lists every key.";
    CANNOT_LISTEN = "LS-0071", EXIT_FAILED, "A node cannot listen on an address or socket",
        "Another process listens there, the address is none of this machine, or permission is missing.",
        "Stop the other process, or give the node another address in node.toml; then start it again.";
    RUNS_ALREADY = "LS-0072", EXIT_FAILED, "A node's directory is in use, or cannot be used",
        "Another process is the node of this directory, or permission is missing there.",
        "Stop the other process, or mend the directory; then start the node again.";
    CANNOT_START = "LS-0073", EXIT_FAILED, "A node lacks what it needs to start",
        "Memory, threads or open files are short, or the system refuses what the message names.",
        "Give the node more, then start it again.";
    NO_UBLK = "LS-0080", EXIT_FAILED, "This host makes no disk by ublk",
        "Its kernel has no ublk driver, or an older one than Linux 6.5's, or lockstepd may not use it; or the driver refused.",
        "The message names it: load the driver (modprobe ublk_drv), or attach the volume another way. `lockstep doctor` says \
         what this host can do.";
    NO_DISK = "LS-0081", EXIT_ABSENT, "The volume is no disk of this host",
        "It was never attached here, or was detached, or is attached another way.",
        "`lockstep device list` names what is attached.";
    NO_SOCKET = "LS-0082", EXIT_ABSENT, "The volume has no socket for machines on this node",
        "It was never added there, or was removed.",
        "`lockstep vhost list` names those that there are; `lockstep vhost add NAME` makes one.";
    BAD_MACHINE = "LS-0083", EXIT_FAILED, "A machine's disk was cut off from its node",
        "What QEMU said by vhost-user, or what the machine put into its rings, breaks a rule; or the machine's memory is not \
         shared.",
        "The log's line says which. QEMU connects again by itself (reconnect=1); give it memory that is shared (share=on), as \
         docs/machines.md shows. Other machines are not touched by it.";
    REPLICA_AWAY = "LS-0084", EXIT_FAILED, "A replica is away that may go on alone",
        "Where a majority is to decide again, every replica has to know that first: one that is not connected may go on by itself, \
         and what clients write there would be another history.",
        "Bring its node back, then set the option again; or, only if its node is switched off for good or its disk is gone, \
         remove the replica: `lockstep resource remove-replica`.";
}

/// Said with `UNSUPPORTED` of a resource that is to do without quorum, and has a witness.
pub const WITNESS_WITHOUT_QUORUM: &str = "quorum = off is for resources without a witness; with one, keep \
     quorum = majority: it goes on as well when a node is lost, and never splits";

/// The entry with this number, as in `LS-0042`.
#[must_use]
pub fn find(code: &str) -> Option<&'static Code> {
    CODES.iter().find(|entry| entry.code == code)
}
