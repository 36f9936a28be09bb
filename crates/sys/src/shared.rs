//! What another process shares with this one: its memory, and signals between the two, as vhost-user has them.
//!
//! What always holds:
//! - Nothing outside a mapping is read or written: each access is checked against its length.
//! - Memory that its owner can take away again (a file that is not sealed against shrinking) is reached by the kernel's
//!   copies only, which fail where a plain access would end this process.
//! - What another process does to a signal's descriptor, whose flags and count it shares, keeps nothing here waiting: nothing
//!   is asked of them that would wait.
//! - The other process changes what is here whenever it wants to. It is copied, never borrowed.
//!
//! Not here: what the bytes mean (`vhost`).

use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use crate::descriptor::{Descriptor, Handle, Socket};
use crate::errno::{Errno, check, check_count};

/// Descriptors that come with one message, at most.
pub const HANDLES_MAX: usize = 8;

/// What an event's descriptor is called in `/proc/self/fd`.
const EVENT_NAME: &str = "anon_inode:[eventfd]";

impl From<Socket> for Handle {
    fn from(socket: Socket) -> Handle {
        Handle(socket.0)
    }
}

impl Handle {
    /// A new signal between two processes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new_event() -> Result<Handle, Errno> {
        // SAFETY: plain call without pointers.
        let number = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        Ok(Handle(Descriptor::adopt(number)))
    }

    /// Whether it is such a signal; from now on nothing done to it waits, whatever another process that has it does with it.
    #[must_use]
    pub fn becomes_event(&self) -> bool {
        let name = std::fs::read_link(format!("/proc/self/fd/{}", self.0.number()));
        let is_event = name.is_ok_and(|name| name.as_os_str() == EVENT_NAME);
        // SAFETY: plain calls without pointers on a descriptor that is open.
        is_event
            && unsafe {
                let flags = libc::fcntl(self.0.number(), libc::F_GETFL);
                libc::fcntl(self.0.number(), libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
            }
    }

    /// Signals. Where the counter is full nobody listens, and it is signalled anyway.
    pub fn signal(&self) {
        // The flag belongs to all who have it, and may be gone.
        if !self.is_ready(libc::POLLOUT) {
            return;
        }
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes eight bytes from a local array.
        unsafe { libc::write(self.0.number(), one.as_ptr().cast(), one.len()) };
    }

    /// Whether it was signalled since the last time.
    #[must_use]
    pub fn take_signal(&self) -> bool {
        let mut count = [0; 8];
        let vector = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        // Not at a place: an event has none.
        let (number, nowhere, at_once) = (self.0.number(), -1, libc::RWF_NOWAIT);
        // SAFETY: the kernel fills at most eight bytes of a local array.
        let read = unsafe { libc::preadv2(number, &raw const vector, 1, nowhere, at_once) };
        if read >= 0 || Errno::last() != Errno::NOT_SUPPORTED || !self.is_ready(libc::POLLIN) {
            return read == 8;
        }
        // Before Linux 5.8 an event cannot be asked so.
        // SAFETY: as above.
        let read = unsafe { libc::read(number, count.as_mut_ptr().cast(), count.len()) };
        read == 8
    }

    fn is_ready(&self, events: libc::c_short) -> bool {
        let mut polled = libc::pollfd { fd: self.0.number(), events, revents: 0 };
        // SAFETY: one valid entry, which outlives the call; the descriptor is open as long as `self` is.
        let count = unsafe { libc::poll(&raw mut polled, 1, 0) };
        count > 0 && polled.revents & events != 0
    }

    /// As a socket, if it is one.
    #[must_use]
    pub fn as_socket(&self) -> Option<Socket> {
        let mut facts = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the kernel fills the structure if it answers 0.
        let facts = unsafe {
            check(libc::fstat(self.0.number(), facts.as_mut_ptr())).ok()?;
            facts.assume_init()
        };
        (facts.st_mode & libc::S_IFMT == libc::S_IFSOCK).then(|| Socket(self.0.clone()))
    }
}

/// Room for the descriptors of a message, as the kernel wants it.
#[repr(C, align(8))]
struct Ancillary([u8; 128]);

impl Socket {
    /// Receives what is there, and the descriptors that came with it; `EAGAIN` if nothing is, 0 bytes at the end.
    ///
    /// # Errors
    /// The kernel's; `E2BIG` if more descriptors came than [`HANDLES_MAX`].
    pub fn receive_now(&self, bytes: &mut [u8], handles: &mut Vec<Handle>) -> Result<usize, Errno> {
        let mut room = Ancillary([0; 128]);
        let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: plain data for which all zeroes is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut room.0).cast();
        message.msg_controllen = size_of_val(&room.0) as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the message lists memory that is borrowed for the call.
        let count =
            check_count(unsafe { libc::recvmsg(self.0.number(), &raw mut message, flags) })?;
        // SAFETY: the kernel has filled the control part; its macros walk what it says is there.
        unsafe {
            let mut part = libc::CMSG_FIRSTHDR(&raw const message);
            while !part.is_null() {
                if (*part).cmsg_level == libc::SOL_SOCKET && (*part).cmsg_type == libc::SCM_RIGHTS {
                    let data = libc::CMSG_DATA(part).cast::<i32>();
                    let empty = libc::CMSG_LEN(0) as usize;
                    let all = ((*part).cmsg_len as usize).saturating_sub(empty) / size_of::<i32>();
                    for index in 0..all {
                        let number = data.add(index).read_unaligned();
                        handles.push(Handle::from(OwnedFd::from_raw_fd(number)));
                    }
                }
                part = libc::CMSG_NXTHDR(&raw const message, part);
            }
        }
        if message.msg_flags & libc::MSG_CTRUNC != 0 || handles.len() > HANDLES_MAX {
            return Err(Errno(libc::E2BIG));
        }
        Ok(count)
    }

    /// Sends all of it at once, with a descriptor or without.
    ///
    /// # Errors
    /// The kernel's; `EAGAIN` if there is no room for all of it.
    pub fn send_now(&self, bytes: &[u8], handle: Option<&Handle>) -> Result<(), Errno> {
        let mut room = Ancillary([0; 128]);
        let mut vector =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: plain data for which all zeroes is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        if let Some(handle) = handle {
            let length = u32::try_from(size_of::<i32>()).expect("four");
            message.msg_control = (&raw mut room.0).cast();
            // SAFETY: arithmetic only; and the room has space for one descriptor behind its header.
            unsafe {
                message.msg_controllen = libc::CMSG_SPACE(length) as _;
                let part = libc::CMSG_FIRSTHDR(&raw const message);
                (*part).cmsg_level = libc::SOL_SOCKET;
                (*part).cmsg_type = libc::SCM_RIGHTS;
                (*part).cmsg_len = libc::CMSG_LEN(length) as _;
                libc::CMSG_DATA(part).cast::<i32>().write_unaligned(handle.0.number());
            }
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the message lists memory that is borrowed for the call; the kernel only reads it.
        let count =
            check_count(unsafe { libc::sendmsg(self.0.number(), &raw const message, flags) })?;
        if count == bytes.len() { Ok(()) } else { Err(Errno::AGAIN) }
    }

    /// Two sockets, connected to each other.
    ///
    /// # Errors
    /// The kernel's.
    pub fn pair() -> Result<(Socket, Socket), Errno> {
        let (one, other) =
            std::os::unix::net::UnixStream::pair().map_err(|error| Errno::of(&error))?;
        Ok((Socket::from(OwnedFd::from(one)), Socket::from(OwnedFd::from(other))))
    }
}

/// A part of a file in memory that another process has, too.
pub struct SharedMemory {
    start: *mut u8,
    /// Of the mapping, which begins where the file does.
    mapped: usize,
    /// Where the part begins in it.
    first: usize,
    length: usize,
    /// Nobody can make the file shorter.
    firm: bool,
    process: libc::pid_t,
}

// SAFETY: the mapping lasts as long as this, and belongs to no thread.
unsafe impl Send for SharedMemory {}
// SAFETY: it is only copied from and to, as another process does at the same time.
unsafe impl Sync for SharedMemory {}

impl std::fmt::Debug for SharedMemory {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SharedMemory").field("length", &self.length).finish_non_exhaustive()
    }
}

impl SharedMemory {
    /// New memory of so many bytes, zeroes, and what another process maps it by. Its length cannot change.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(bytes: u64) -> Result<(SharedMemory, Handle), Errno> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a constant that ends with a zero.
        let number = check(unsafe { libc::memfd_create(c"lockstep".as_ptr(), flags) })?;
        let handle = Handle(Descriptor::adopt(number));
        let length = i64::try_from(bytes).map_err(|_| Errno::TOO_LARGE)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: plain calls on a descriptor that was just made.
        unsafe {
            check(libc::ftruncate(number, length))?;
            check(libc::fcntl(number, libc::F_ADD_SEALS, seals))?;
        }
        Ok((SharedMemory::map(&handle, 0, bytes)?, handle))
    }

    /// Maps a part of a file that is memory: one of a file system in memory, or of large pages, or that has no name.
    ///
    /// # Errors
    /// `EINVAL` if the file does not have it; [`Errno::NOT_SUPPORTED`] if it is another file, whose file system or disk might
    /// have whoever reads it wait without end; the kernel's otherwise.
    pub fn map(handle: &Handle, offset: u64, bytes: u64) -> Result<SharedMemory, Errno> {
        let number = handle.0.number();
        let mut facts = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the kernel fills the structure if it answers 0.
        let facts = unsafe {
            check(libc::fstat(number, facts.as_mut_ptr()))?;
            facts.assume_init()
        };
        let end = offset.checked_add(bytes).ok_or(Errno::INVALID)?;
        let size = u64::try_from(facts.st_size).map_err(|_| Errno::INVALID)?;
        let is_file = facts.st_mode & libc::S_IFMT == libc::S_IFREG;
        if !is_file || bytes == 0 || end > size {
            return Err(Errno::INVALID);
        }
        // SAFETY: plain call; it fails for what is no memory.
        let seals = unsafe { libc::fcntl(number, libc::F_GET_SEALS) };
        if seals < 0 {
            return Err(Errno::NOT_SUPPORTED);
        }
        // A mapping of large pages begins and ends with one; the file's blocks are as large as those.
        let page = u64::try_from(facts.st_blksize).unwrap_or(0).max(4096);
        let whole = end.checked_next_multiple_of(page).ok_or(Errno::INVALID)?;
        let mapped = usize::try_from(whole).map_err(|_| Errno::INVALID)?;
        let (first, length) = (
            usize::try_from(offset).map_err(|_| Errno::INVALID)?,
            usize::try_from(bytes).map_err(|_| Errno::INVALID)?,
        );
        // Large pages may be short although the file is long.
        let firm = seals & libc::F_SEAL_SHRINK != 0 && page == 4096;
        let (protection, none) = (libc::PROT_READ | libc::PROT_WRITE, std::ptr::null_mut());
        // SAFETY: a new mapping at a place of the kernel's choice, of a file that is open.
        let start = unsafe { libc::mmap(none, mapped, protection, libc::MAP_SHARED, number, 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // SAFETY: advice about the mapping that was just made. A machine's memory has no place in a dump of this process.
        unsafe { libc::madvise(start, mapped, libc::MADV_DONTDUMP) };
        let process = libc::pid_t::try_from(std::process::id()).map_err(|_| Errno::INVALID)?;
        let memory = SharedMemory { start: start.cast(), mapped, first, length, firm, process };
        // Whether the kernel copies, where it has to.
        memory.read(0, &mut [0])?;
        Ok(memory)
    }

    /// Its length.
    #[must_use]
    pub fn length(&self) -> u64 {
        u64::try_from(self.length).expect("64 bits fit")
    }

    /// Where so many bytes are.
    fn at(&self, offset: u64, bytes: usize) -> Result<*mut u8, Errno> {
        let offset = usize::try_from(offset).map_err(|_| Errno::INVALID)?;
        let end = offset.checked_add(bytes).ok_or(Errno::INVALID)?;
        if end > self.length {
            return Err(Errno::INVALID);
        }
        Ok(self.start.wrapping_add(self.first + offset))
    }

    /// Copies from there.
    ///
    /// # Errors
    /// `EINVAL` if it is not inside; `EFAULT` if the memory is gone.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let from = self.at(offset, bytes.len())?;
        if !self.firm {
            return self.carry(from, bytes.as_mut_ptr(), bytes.len(), false);
        }
        // SAFETY: inside the mapping, which cannot shrink. Another process may write there meanwhile: then these bytes are
        // old or new ones, and any are values.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies to there.
    ///
    /// # Errors
    /// As [`SharedMemory::read`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let to = self.at(offset, bytes.len())?;
        if !self.firm {
            return self.carry(to, bytes.as_ptr().cast_mut(), bytes.len(), true);
        }
        // SAFETY: as for `read`; no reference of this process leads there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// A number, of two bytes, in the order of a PC. What is read afterwards is read later.
    ///
    /// # Errors
    /// As [`SharedMemory::read`]; `EINVAL` if it is askew.
    pub fn load(&self, offset: u64) -> Result<u16, Errno> {
        let at = self.at(offset, 2)?;
        let number = if self.firm {
            // SAFETY: inside the mapping, which cannot shrink, and aligned as checked.
            unsafe { AtomicU16::from_ptr(aligned(at)?) }.load(Ordering::Acquire).to_le_bytes()
        } else {
            let mut bytes = [0; 2];
            self.carry(at, bytes.as_mut_ptr(), 2, false)?;
            bytes
        };
        fence(Ordering::SeqCst);
        Ok(u16::from_le_bytes(number))
    }

    /// Writes a number of two bytes, after everything that was written before.
    ///
    /// # Errors
    /// As [`SharedMemory::load`].
    pub fn store(&self, offset: u64, number: u16) -> Result<(), Errno> {
        let at = self.at(offset, 2)?;
        fence(Ordering::SeqCst);
        let mut bytes = number.to_le_bytes();
        if self.firm {
            let number = u16::from_ne_bytes(bytes);
            // SAFETY: as for `load`.
            unsafe { AtomicU16::from_ptr(aligned(at)?) }.store(number, Ordering::Release);
        } else {
            self.carry(at, bytes.as_mut_ptr(), 2, true)?;
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Has the kernel copy, between the mapping (`there`) and this process's own memory.
    fn carry(
        &self,
        there: *mut u8,
        here: *mut u8,
        length: usize,
        outward: bool,
    ) -> Result<(), Errno> {
        let mut done = 0;
        while done < length {
            let rest = length - done;
            let own = libc::iovec { iov_base: here.wrapping_add(done).cast(), iov_len: rest };
            let shared = libc::iovec { iov_base: there.wrapping_add(done).cast(), iov_len: rest };
            // SAFETY: the kernel checks the mapping's side itself, and answers EFAULT; the other side is memory that the
            // caller has borrowed for this, for writing where it is written.
            let count = check_count(unsafe {
                if outward {
                    libc::process_vm_writev(
                        self.process,
                        &raw const own,
                        1,
                        &raw const shared,
                        1,
                        0,
                    )
                } else {
                    libc::process_vm_readv(self.process, &raw const own, 1, &raw const shared, 1, 0)
                }
            })?;
            if count == 0 {
                return Err(Errno::IO);
            }
            done += count;
        }
        Ok(())
    }
}

fn aligned(at: *mut u8) -> Result<*mut u16, Errno> {
    if at.addr().is_multiple_of(2) { Ok(at.cast()) } else { Err(Errno::INVALID) }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, and nobody else knows the place.
        unsafe { libc::munmap(self.start.cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests;
