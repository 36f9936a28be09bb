//! The operator: connections on the admin socket, what they ask, and when they are answered.
//!
//! A command that takes long is answered when it is done, and the loop goes on meanwhile. Who asked and
//! went away is not waited for.
//!
//! Always: each request is answered once, except `Events`, which are sent as long as the connection
//! lasts; a client that does not read is told less, never makes the node keep more than a line each. A command that
//! changes something is not begun once its connection is closed, nor is the making of stores gone on with: whoever asked
//! was told, or will say, that it failed.
//!
//! Not here: the form of requests and answers (`wire::admin`), what is told of a resource (`status`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Duration, Instant, NodeId, VolumeId};
use replica::door::{MemberInput, Operation, OperationError, OperationId};
use sys::{Event, Listener, Payload, Piece, Socket};
use wire::admin::{
    self, Answer, Code, Command, FileMember, Lines, Operation as Wish, OptionsChange, Reply,
    Request, ResourceFile, StoreKind, codes,
};

use wire::{AfterSplitBrain, Configuration, MemberEntry, MemberKind, VolumeEntry};

use super::lifecycle::refuse_witness;
use super::sockets::listen_unix;
use super::{Node, Purpose, Work};
use crate::backing::{Refused, capacity_bytes};
use crate::log::{debug, info, warning};
use crate::slab::Key;

/// Connections of operators and their programs, at most.
const ADMINS_MAX: usize = 128;
/// Bytes received at once.
const RECEIVE_BYTES: usize = 16 << 10;
/// Answers that wait for a client before nothing more is read from it, in bytes.
const UNSENT_BYTES_MAX: usize = 4 << 20;
/// Names that are kept for one connection, at most: one for each resource that is made at the same time.
const RESERVED_MAX: usize = 64;
/// Operations of one resource that are not finished, at most.
const OPERATIONS_MAX: usize = 64;
/// Between two looks at what changed, for those who listen to events.
const EVENTS_EVERY: Duration = Duration::from_millis(100);

/// One connection.
pub(crate) struct Admin {
    socket: Socket,
    lines: Lines,
    out: Vec<u8>,
    unsent: usize,
    receiving: bool,
    restless: bool,
    /// Nothing more is taken; it closes when everything is sent.
    closing: bool,
    /// Names of which only this connection's asker makes a resource.
    reserved: BTreeSet<String>,
    /// Raised when the connection ends: what it asked for and takes long is given up.
    left: Arc<AtomicBool>,
    pub(super) events: Option<Listening>,
}

/// Someone listens to events.
pub(crate) struct Listening {
    pub(super) id: u64,
    pub(super) resource: Option<String>,
    pub(super) number: u64,
    /// What was told last, by resource.
    pub(super) told: std::collections::BTreeMap<String, admin::ResourceStatus>,
}

/// Where an answer goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(super) admin: Key,
    pub(super) id: u64,
}

/// An operation that a member has not finished.
pub(crate) struct Pending {
    pub(super) resource: Key,
    /// `None`: the node itself wished it.
    pub(super) asker: Option<Asker>,
    /// A host waits for it.
    pub(super) host: Option<super::reservations::Reserving>,
}

impl Node {
    /// Listens on the admin socket, which only its owner may use.
    pub(super) fn open_admin(&mut self) -> Result<(), String> {
        let path = self.config.admin_socket.clone();
        let listener = listen_unix(&path, sys::listen_unix_private)?;
        self.accept_admins(listener);
        Ok(())
    }

    pub(super) fn accept_admins(&mut self, listener: Listener) {
        let token = self.token(Purpose::AdminAccept(listener.clone()));
        self.hands.accept(token, &listener);
    }

    pub(super) fn on_admin(&mut self, socket: Socket) {
        if self.admins.len() >= ADMINS_MAX {
            warning!("an admin connection was turned away: there are {ADMINS_MAX} already");
            return self.hands.close(&socket);
        }
        let key = self.admins.insert(Admin {
            socket,
            lines: Lines::default(),
            out: Vec::new(),
            unsent: 0,
            receiving: false,
            restless: false,
            closing: false,
            reserved: BTreeSet::new(),
            left: Arc::default(),
            events: None,
        });
        self.stir_admin(key);
    }

    fn stir_admin(&mut self, key: Key) {
        if let Some(admin) = self.admins.get_mut(key)
            && !admin.restless
        {
            admin.restless = true;
            self.restless_admins.push(key);
        }
    }

    /// Sends and receives, for every connection that may have cause to.
    pub(super) fn serve_admins(&mut self) {
        for key in std::mem::take(&mut self.restless_admins) {
            let Some(admin) = self.admins.get_mut(key) else { continue };
            admin.restless = false;
            if !admin.out.is_empty() {
                let out = std::mem::take(&mut admin.out);
                let bytes = out.len();
                admin.unsent += bytes;
                let token = self.operations.insert(Purpose::AdminSend(key, bytes)).number();
                self.hands.send(token, &admin.socket, [Piece::from(out)]);
            }
            if admin.closing && admin.unsent == 0 {
                self.drop_admin(key);
                continue;
            }
            let room = admin.unsent < UNSENT_BYTES_MAX && !admin.receiving && !admin.closing;
            if room && let Some(buffer) = self.admin_pool.take(RECEIVE_BYTES) {
                admin.receiving = true;
                let token = self.operations.insert(Purpose::AdminReceive(key)).number();
                self.hands.receive(token, &admin.socket, buffer, 0..RECEIVE_BYTES);
            }
        }
    }

    pub(super) fn on_admin_sent(&mut self, key: Key, bytes: usize, event: &Event) {
        let Some(admin) = self.admins.get_mut(key) else { return };
        admin.unsent -= bytes;
        if event.result.is_err() {
            return self.drop_admin(key);
        }
        self.stir_admin(key);
    }

    pub(super) fn on_admin_received(&mut self, key: Key, event: Event) {
        let Some(admin) = self.admins.get_mut(key) else { return };
        admin.receiving = false;
        let (Ok(count @ 1..), Payload::Buffer(buffer)) = (event.result, event.payload) else {
            return self.drop_admin(key);
        };
        if admin.lines.push(&buffer[..count as usize]).is_err() {
            let reply = Reply::error(0, &codes::MALFORMED_REQUEST, "the line is too long");
            return self.dismiss_admin(key, &reply);
        }
        while let Some(line) = self.admins.get_mut(key).and_then(|admin| admin.lines.next_line()) {
            match Request::decode(&line) {
                Ok(request) => {
                    let asker = Asker { admin: key, id: request.id };
                    match self.refuse_other(&request) {
                        Ok(()) => self.on_command(asker, request.command, request.identity),
                        Err(refused) => self.answer(asker, Err(refused)),
                    }
                }
                Err(reply) => return self.dismiss_admin(key, &reply),
            }
        }
        self.stir_admin(key);
    }

    /// What came is no request: it is said why, and nothing more is taken.
    fn dismiss_admin(&mut self, key: Key, reply: &Reply) {
        self.reply(key, reply);
        if let Some(admin) = self.admins.get_mut(key) {
            admin.closing = true;
            self.admin_faults += 1;
            warning!("an admin connection is closed: what came over it is no request");
        }
    }

    fn drop_admin(&mut self, key: Key) {
        if let Some(admin) = self.admins.remove(key) {
            admin.left.store(true, Ordering::Relaxed);
            self.hands.close(&admin.socket);
        }
    }

    /// This node stops: what was asked of it and takes long is given up.
    pub(super) fn give_up_long(&mut self) {
        for (_, admin) in self.admins.iter() {
            admin.left.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn reply(&mut self, key: Key, reply: &Reply) {
        let Some(admin) = self.admins.get_mut(key) else { return };
        if admin::encode_line(reply, &mut admin.out).is_err() {
            let reply = Reply::error(reply.id, &codes::REPLY_TOO_LONG, "ask for one resource");
            admin::encode_line(&reply, &mut admin.out).expect("a short line");
        }
        self.stir_admin(key);
    }

    pub(super) fn answer(&mut self, asker: Asker, result: Result<Answer, Refused>) {
        let reply = match result {
            Ok(answer) => Reply::result(asker.id, answer),
            Err(refused) => {
                debug!("an operator was refused: {refused}");
                Reply::error(asker.id, refused.code, refused.message)
            }
        };
        self.reply(asker.admin, &reply);
    }

    pub(super) fn answer_done(&mut self, asker: Asker, result: Result<(), Refused>) {
        self.answer(asker, result.map(|()| Answer::Done {}));
    }

    /// A command about one resource is not done to another one that has its name here.
    fn refuse_other(&self, request: &Request) -> Result<(), Refused> {
        let name = match &request.command {
            // Of a disk of one that is gone: the disk says whose it is.
            Command::UblkDetach { .. } => None,
            command => command.acts_on(),
        };
        let (Some(name), Some(identity)) = (name, request.identity) else { return Ok(()) };
        match self.known.get(name) {
            Some(known) if known.file.id != identity => {
                let message = format!(
                    "{name}: the one that this node knows is {:016x}, not {identity:016x}",
                    known.file.id
                );
                Err(Refused::new(&codes::OTHER_IDENTITY, message))
            }
            _ => Ok(()),
        }
    }

    fn on_command(&mut self, asker: Asker, command: Command, identity: Option<u64>) {
        let changes = !matches!(
            command,
            Command::Ping {}
                | Command::NodeStatus {}
                | Command::Status { .. }
                | Command::StatusPage { .. }
                | Command::Events { .. }
                | Command::UblkList {}
                | Command::VhostList {}
        );
        if changes && self.stopping.is_some() {
            let refused = Refused::new(&codes::STOPPING, "the node is stopping");
            return self.answer(asker, Err(refused));
        }
        if changes && self.has_left(asker) {
            return info!(
                "a command of an operator is dropped: who asked has gone ({})",
                verb(&command)
            );
        }
        self.take_up(asker, command, identity);
    }

    fn take_up(&mut self, asker: Asker, command: Command, identity: Option<u64>) {
        match command {
            Command::Ping {} => {
                let program = env!("CARGO_PKG_VERSION").to_owned();
                let node = self.config.name.clone();
                self.answer(asker, Ok(Answer::Pong { program, node }));
            }
            Command::NodeStatus {} => {
                let status = self.node_status();
                self.answer(asker, Ok(Answer::Node(status)));
            }
            Command::Status { resource } => {
                let result = self.status(resource.as_deref()).map(Answer::Status);
                self.answer(asker, result);
            }
            Command::StatusPage { after } => {
                let status = self.status_page(&after);
                self.answer(asker, Ok(Answer::Status(status)));
            }
            Command::ResourceReserve { resource } => self.begin_reserve(asker, resource),
            Command::ResourceDefine { file } => {
                self.redefine(*file, move |node, result| node.answer_done(asker, result));
            }
            Command::ResourceCreate { resource, force } => {
                let left = self.admins.get(asker.admin).map(|admin| Arc::clone(&admin.left));
                self.create(&resource, force, left.unwrap_or_default(), move |node, result| {
                    node.answer_done(asker, result);
                });
            }
            Command::ResourceDelete { resource, force, unused } => {
                let done = move |node: &mut Node, result| node.answer_done(asker, result);
                match self.refuse_used(&resource, unused) {
                    Ok(()) => self.delete(&resource, force, done),
                    refused => done(self, refused),
                }
            }
            Command::ResourceForget { resource, stores } => {
                self.forget(&resource, stores, move |node, result| node.answer_done(asker, result));
            }
            Command::ResourceAdmit { resource, node } => {
                let result = self.admit(&resource, node);
                self.answer_done(asker, result);
            }
            Command::ResourceDismiss { resource, node } => {
                let result = self.dismiss(&resource, NodeId(node));
                self.answer_done(asker, result);
            }
            Command::ResourceFile { resource } => {
                let result = self.resource_file(&resource);
                self.answer(asker, result.map(|file| Answer::File(Box::new(file))));
            }
            Command::Operation { resource, operation } => {
                if let Err(refused) = self.operate(asker, &resource, operation) {
                    self.answer(asker, Err(refused));
                }
            }
            Command::Events { resource } => self.begin_events(asker, resource),
            Command::Stop { graceful } => {
                self.answer_done(asker, Ok(()));
                self.stop(graceful);
            }
            Command::Reload {} => self.reload(Some(asker)),
            Command::Dump { resource } => self.begin_dump(asker, &resource),
            disks => self.take_up_disks(asker, disks, identity),
        }
    }

    /// Commands about what machines and this host itself have as disks.
    fn take_up_disks(&mut self, asker: Asker, command: Command, identity: Option<u64>) {
        match command {
            Command::UblkAttach { resource, volume } => {
                self.attach_disk(asker, &resource, volume);
            }
            Command::UblkDetach { resource, volume } => {
                self.detach_disk(asker, &resource, volume, identity);
            }
            Command::UblkList {} => {
                let disks = self.host_disks();
                let host = sys::boot_name();
                self.answer(asker, Ok(Answer::HostDisks { host, disks }));
            }
            Command::VhostAdd { resource, volume, group } => {
                let result = self.add_socket(&resource, volume, group);
                self.answer(asker, result.map(Answer::VhostSocket));
            }
            Command::VhostRemove { resource, volume } => {
                let result = self.remove_socket(&resource, volume);
                self.answer_done(asker, result);
            }
            Command::VhostList {} => {
                let (host, sockets) = (sys::boot_name(), self.machine_sockets());
                self.answer(asker, Ok(Answer::VhostSockets { host, sockets }));
            }
            other => unreachable!("{} is no such command", verb(&other)),
        }
    }

    /// Whether nobody is there any more to hear the answer: this node stood still, and the asker gave up.
    fn has_left(&self, asker: Asker) -> bool {
        self.admins.get(asker.admin).is_none_or(|admin| admin.socket.is_left())
    }

    fn begin_reserve(&mut self, asker: Asker, name: String) {
        let result = self.reserve(asker.admin, name);
        self.answer_done(asker, result);
    }

    /// Keeps a name for a connection until that ends. It ends with the process that has it, so that what a `create`
    /// left that was killed is nobody's.
    fn reserve(&mut self, key: Key, name: String) -> Result<(), Refused> {
        admin::check_name("the resource", &name)
            .map_err(|error| Refused::new(&codes::BAD_RESOURCE_FILE, error.0))?;
        let taken = |(other, admin): (Key, &Admin)| other != key && admin.reserved.contains(&name);
        if self.admins.iter().any(taken) {
            let message = format!("{name}: somebody else is making a resource of that name");
            return Err(Refused::new(&codes::BUSY, message));
        }
        let Some(admin) = self.admins.get_mut(key) else { return Ok(()) };
        if admin.reserved.len() >= RESERVED_MAX {
            let message = format!("{name}: {RESERVED_MAX} names are kept for this connection");
            return Err(Refused::new(&codes::BUSY, message));
        }
        admin.reserved.insert(name);
        Ok(())
    }

    fn begin_events(&mut self, asker: Asker, resource: Option<String>) {
        if let Some(admin) = self.admins.get_mut(asker.admin) {
            let told = std::collections::BTreeMap::new();
            admin.events = Some(Listening { id: asker.id, resource, number: 0, told });
            self.events_at = Some(self.hands.now());
        }
    }

    pub(super) fn resource_file(&self, name: &str) -> Result<ResourceFile, Refused> {
        let known = self.known.get(name).ok_or_else(|| no_resource(name))?;
        let mut file = known.file.clone();
        let running = known.running.and_then(|key| self.resources.get(key));
        if let Some(configuration) = running.and_then(|resource| resource.configuration()) {
            bring_up_to_date(&mut file, &configuration);
        }
        Ok(file)
    }

    /// Passes a wish to the resource's member, which answers later.
    fn operate(&mut self, asker: Asker, name: &str, wish: Wish) -> Result<(), Refused> {
        let known = self.known.get(name).ok_or_else(|| no_resource(name))?;
        let not_created = || {
            Refused::new(&codes::NOT_CREATED, format!("{name} is defined here, and not created"))
        };
        let key = known.running.ok_or_else(not_created)?;
        let resource = self.resources.get(key).ok_or_else(not_created)?;
        let configuration = resource.configuration();
        let operation = match wish {
            Wish::Promote {} => Operation::Promote,
            Wish::Demote {} => Operation::Demote,
            Wish::AddReplica { member, node } => {
                if let Some(configuration) = &configuration {
                    refuse_outgrown(&known.file, configuration, &member)?;
                }
                if let Some(node) = node {
                    self.admit(name, node)?;
                }
                let voter = member.voter.filter(|&voter| voter != 0).ok_or_else(|| {
                    let message = format!("{name}: a member that is added needs its `voter`");
                    Refused::new(&codes::BAD_RESOURCE_FILE, message)
                })?;
                let (node, kind) = (NodeId(member.node), member.kind);
                let quorum = configuration.as_ref().map(|known| known.options.quorum);
                let quorum = quorum.unwrap_or_default();
                refuse_witness(name, quorum, [kind].into_iter())?;
                Operation::AddMember { node, kind, voter: base::VoterId(voter) }
            }
            Wish::RemoveReplica { node } => Operation::RemoveMember { node: NodeId(node) },
            Wish::Resize { volume, size_bytes, allow_shrink } => {
                resize(&known.file, configuration.as_deref(), volume, size_bytes, allow_shrink)?
            }
            Wish::Invalidate {} => Operation::Invalidate,
            Wish::Suspend {} => Operation::Suspend(true),
            Wish::Resume {} => Operation::Suspend(false),
            Wish::PauseResync {} => Operation::PauseResync(true),
            Wish::ResumeResync {} => Operation::PauseResync(false),
            Wish::FailWaiting {} => Operation::FailWaiting(true),
            Wish::LetWait {} => Operation::FailWaiting(false),
            Wish::Verify { anew } => Operation::Verify { anew },
            Wish::StopVerify {} => Operation::StopVerify,
            Wish::Force {} => Operation::Force,
            Wish::Resolve { discard } => Operation::Resolve { discard: NodeId(discard) },
            Wish::SetOptions { options } => new_options(name, configuration.as_deref(), &options)?,
            Wish::Cut {} => Operation::Cut,
        };
        let open = self.pending.values().filter(|pending| pending.resource == key).count();
        if open >= OPERATIONS_MAX {
            let message = format!("{name}: {open} operations are not finished");
            return Err(Refused::new(&codes::BUSY, message));
        }
        self.wish(key, Some(asker), operation);
        Ok(())
    }

    /// Asks a member for an operation.
    pub(super) fn wish(
        &mut self,
        resource: Key,
        asker: Option<Asker>,
        operation: Operation,
    ) -> OperationId {
        self.next_operation += 1;
        let id = OperationId(self.next_operation);
        info!("{}: an operator asks: {operation:?}", self.name_of(resource));
        self.pending.insert(id, Pending { resource, asker, host: None });
        self.work.push_back(Work::Member(resource, MemberInput::Operation { id, operation }));
        id
    }

    /// A member has finished an operation.
    pub(super) fn on_done(&mut self, id: OperationId, result: Result<(), OperationError>) {
        let Some(pending) = self.pending.remove(&id) else { return };
        if let Some(reserving) = pending.host {
            return self.answer_reserving(pending.resource, reserving, result);
        }
        let name = self.name_of(pending.resource).to_owned();
        if let Some(asker) = pending.asker {
            let result = result.map_err(|error| self.refusal(&name, error));
            self.answer_done(asker, result);
        }
    }

    /// The resource is gone: whoever waits for it is told so.
    pub(super) fn fail_operations_of(&mut self, resource: Key) {
        let gone: Vec<OperationId> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.resource == resource)
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            let Some(pending) = self.pending.remove(&id) else { continue };
            if let Some(reserving) = pending.host {
                self.answer_reserving(resource, reserving, Err(reserving.when_gone()));
            } else if let Some(asker) = pending.asker {
                let refused = Refused::new(&codes::NO_RESOURCE, "the resource was taken away");
                self.answer(asker, Err(refused));
            }
        }
    }

    fn refusal(&self, name: &str, error: OperationError) -> Refused {
        let code: &'static Code = match error {
            OperationError::NoQuorum => &codes::NO_QUORUM,
            OperationError::NoCopy => &codes::NO_COPY,
            OperationError::Late => &codes::TIMEOUT,
            OperationError::OtherPrimary(_) => &codes::OTHER_PRIMARY,
            OperationError::LastReplica => &codes::LAST_REPLICA,
            OperationError::TooFewReplicas => &codes::TOO_FEW_REPLICAS,
            OperationError::Already => &codes::ALREADY,
            OperationError::NoMember => &codes::NO_MEMBER,
            OperationError::Full => &codes::TOO_MANY_MEMBERS,
            OperationError::NoReplica => &codes::NO_REPLICA,
            OperationError::BadSize => &codes::BAD_SIZE,
            OperationError::BadOption => &codes::BAD_OPTION,
            OperationError::Replaced => &codes::RESIZE_REPLACED,
            OperationError::Shrinks => &codes::SHRINK,
            OperationError::MayHaveForked => &codes::MAY_HAVE_FORKED,
            OperationError::ReplicaAway => &codes::REPLICA_AWAY,
            OperationError::Stopped => &codes::VERIFY_STOPPED,
            OperationError::OldRelease => &codes::OLD_RELEASE,
            OperationError::NoPrimary => &codes::NO_PRIMARY,
            OperationError::NoSplitBrain => &codes::NO_SPLIT_BRAIN,
            OperationError::OwnSide => &codes::OWN_SIDE,
            OperationError::NothingMissing => &codes::NOTHING_MISSING,
            OperationError::Reservation(_) => &codes::BAD_OPTION,
        };
        let message = match error {
            OperationError::OtherPrimary(node) => {
                format!("{name}: {} is primary", self.node_name(name, node))
            }
            _ => format!("{name}: {}", code.title.to_lowercase()),
        };
        Refused::new(code, message)
    }

    /// When those who listen to events are to be told again.
    pub(super) fn events_wake_at(&self) -> Option<Instant> {
        self.events_at
    }

    /// How those resources are of which they hear.
    fn statuses_for(&self, listening: &[Key]) -> Vec<admin::ResourceStatus> {
        let events = listening.iter().filter_map(|key| self.admins.get(*key)?.events.as_ref());
        let wanted: BTreeSet<Option<&str>> = events.map(|one| one.resource.as_deref()).collect();
        // Who hears of all comes first.
        if wanted.first().is_some_and(Option::is_none) {
            return self.status(None).map(|status| status.resources).unwrap_or_default();
        }
        let each = wanted.into_iter().filter_map(|name| self.status(name).ok());
        each.flat_map(|status| status.resources).collect()
    }

    /// Tells those who listen what has changed.
    pub(super) fn tell_events(&mut self) {
        let now = self.hands.now();
        if self.events_at.is_none_or(|at| at > now) {
            return;
        }
        self.events_at = None;
        let listening: Vec<Key> = self
            .admins
            .iter()
            .filter(|(_, admin)| admin.events.is_some())
            .map(|(key, _)| key)
            .collect();
        if listening.is_empty() {
            return;
        }
        self.events_at = Some(now + EVENTS_EVERY);
        let statuses = self.statuses_for(&listening);
        for key in listening {
            let Some(admin) = self.admins.get_mut(key) else { continue };
            if admin.unsent >= UNSENT_BYTES_MAX {
                continue;
            }
            let Some(events) = admin.events.as_mut() else { continue };
            let replies = events.changes(&statuses);
            for reply in replies {
                self.reply(key, &reply);
            }
        }
    }
}

/// What a command is called in the log.
fn verb(command: &Command) -> String {
    let text = match command {
        Command::Operation { resource, operation } => {
            return format!("{operation:?} of {resource}");
        }
        other => format!("{other:?}"),
    };
    text.split([' ', '(', '{']).next().unwrap_or("?").to_owned()
}

/// The options after a change, if they may be so.
fn new_options(
    name: &str,
    known: Option<&Configuration>,
    change: &OptionsChange,
) -> Result<Operation, Refused> {
    let old = known.map(|known| known.options.clone()).unwrap_or_default();
    if change.data_checksum.is_some_and(|wanted| wanted != old.data_checksum) {
        let message = format!("{name}: data checksums are chosen at creation only");
        return Err(Refused::new(&codes::UNSUPPORTED, message));
    }
    let options = change.applied(&old);
    if let AfterSplitBrain::DiscardNode(node) = options.after_split_brain
        && change.after_split_brain.is_some()
        && !known.is_some_and(|known| known.is_replica(NodeId(node)))
    {
        let message = format!("{name}: node {node} holds no copy that could be discarded");
        return Err(Refused::new(&codes::NO_MEMBER, message));
    }
    wire::check_options(&options)
        .map_err(|what| Refused::new(&codes::BAD_OPTION, format!("{name}: {what}")))?;
    let members = known.into_iter().flat_map(|known| &known.members);
    refuse_witness(name, options.quorum, members.map(|member| member.kind))?;
    // Others may change some meanwhile.
    Ok(Operation::SetOptions(change.clone()))
}

/// Another size of a volume, if it may have it.
fn resize(
    file: &ResourceFile,
    known: Option<&Configuration>,
    volume: u16,
    size_bytes: u64,
    allow_shrink: bool,
) -> Result<Operation, Refused> {
    let name = &file.name;
    let entry = known.and_then(|known| known.volume(VolumeId(volume)));
    let old = entry.map_or(0, |entry| entry.sectors);
    let sectors = size_bytes / base::SECTOR_BYTES;
    if sectors < old && !allow_shrink {
        let message = format!("{name}: it has {} bytes", old * base::SECTOR_BYTES);
        return Err(Refused::new(&codes::SHRINK, message));
    }
    if !size_bytes.is_multiple_of(base::SECTOR_BYTES) {
        let message = format!("{name}: {size_bytes} bytes are no whole sectors of 512");
        return Err(Refused::new(&codes::BAD_SIZE, message));
    }
    if size_bytes > admin::VOLUME_BYTES_MAX {
        let message = format!("{name}: more than 1PiB, the largest there is");
        return Err(Refused::new(&codes::BAD_SIZE, message));
    }
    let room = room_bytes(file, volume);
    if size_bytes > room {
        let message =
            format!("{name}: its stores have room for {room} bytes; make it anew on larger ones");
        return Err(Refused::new(&codes::STORE_TOO_SMALL, message));
    }
    // The member looks again when it is carried out: it may have grown by then.
    Ok(Operation::Resize { volume: VolumeId(volume), sectors, shrinks: allow_shrink })
}

/// Bytes up to which a volume can grow in the smallest of its stores.
fn room_bytes(file: &ResourceFile, volume: u16) -> u64 {
    let size = file.volumes.iter().find(|entry| entry.index == volume);
    let size_bytes = size.map_or(0, |entry| entry.size_bytes);
    let stores = file.members.iter().flat_map(|member| &member.stores);
    let kinds = stores.filter(|store| store.volume == volume).map(|store| store.kind);
    kinds
        .chain([StoreKind::File])
        .map(|kind| capacity_bytes(kind, size_bytes))
        .min()
        .unwrap_or_default()
}

/// Refuses a copy whose store would be laid out for less than the volume has grown to.
fn refuse_outgrown(
    file: &ResourceFile,
    known: &Configuration,
    member: &FileMember,
) -> Result<(), Refused> {
    for volume in file.volumes.iter().filter(|_| member.kind == MemberKind::Replica) {
        let store = member.stores.iter().find(|store| store.volume == volume.index);
        let kind = store.map_or(StoreKind::File, |store| store.kind);
        let room = capacity_bytes(kind, volume.size_bytes);
        let kept = known.volume(VolumeId(volume.index)).map_or(0, VolumeEntry::kept_sectors);
        if kept > room / base::SECTOR_BYTES {
            let (name, index) = (&file.name, volume.index);
            let message = format!(
                "{name}: volume {index} has grown beyond {room} bytes, the most that such a store has room for; keep \
                 the copy in a file"
            );
            return Err(Refused::new(&codes::STORE_TOO_SMALL, message));
        }
    }
    Ok(())
}

/// A member as a description has it, without its stores.
pub(super) fn described(entry: &MemberEntry) -> FileMember {
    FileMember {
        node: entry.node.0,
        kind: entry.kind,
        voter: Some(entry.voter.0),
        incarnation: Some(entry.incarnation.0).filter(|&incarnation| incarnation != 0),
        in_sync: Some(entry.in_sync),
        stores: Vec::new(),
    }
}

/// Makes a description say what the newest configuration says; of volumes it keeps the first sizes, for which stores are laid out.
fn bring_up_to_date(file: &mut ResourceFile, configuration: &Configuration) {
    let old = std::mem::take(&mut file.members);
    for entry in &configuration.members {
        let stores = old.iter().find(|member| member.node == entry.node.0);
        let stores = stores.map_or(Vec::new(), |member| member.stores.clone());
        file.members.push(FileMember { stores, ..described(entry) });
    }
    file.options = configuration.options.clone();
}

impl Listening {
    /// What is to be told, now that resources are so.
    fn changes(&mut self, statuses: &[admin::ResourceStatus]) -> Vec<Reply> {
        let wanted = |name: &str| self.resource.as_deref().is_none_or(|only| only == name);
        let mut changed: Vec<(String, Option<admin::ResourceStatus>)> = statuses
            .iter()
            .filter(|status| wanted(&status.name))
            .filter(|status| self.told.get(&status.name).is_none_or(|told| !told.is_like(status)))
            .map(|status| (status.name.clone(), Some(status.clone())))
            .collect();
        let gone = self.told.keys().filter(|name| !statuses.iter().any(|one| one.name == **name));
        changed.extend(gone.cloned().map(|name| (name, None)));
        let mut replies = Vec::new();
        for (resource, status) in changed {
            match &status {
                Some(status) => self.told.insert(resource.clone(), status.clone()),
                None => self.told.remove(&resource),
            };
            self.number += 1;
            let event =
                admin::Event { number: self.number, at_ms: sys::wall_clock_ms(), resource, status };
            replies.push(Reply::result(self.id, Answer::Event(Box::new(event))));
        }
        replies
    }
}

pub(super) fn no_resource(name: &str) -> Refused {
    Refused::new(&codes::NO_RESOURCE, format!("{name} is not defined on this node"))
}
