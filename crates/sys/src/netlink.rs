//! A socket to the kernel's generic netlink: requests, their answers, and news that it sends to groups.
//!
//! Facts: `netlink(7)`. Not here: what messages are made of.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::errno::{Errno, check, check_count};

/// The socket.
#[derive(Debug)]
pub struct Netlink(OwnedFd);

impl Netlink {
    /// Opens one.
    ///
    /// # Errors
    /// The kernel's; where it has no netlink, that the family of addresses is not supported.
    pub fn generic() -> Result<Netlink, Errno> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: plain call without pointers.
        let number = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_GENERIC) })?;
        // SAFETY: the number was just returned, so nobody else owns it.
        let socket = Netlink(unsafe { OwnedFd::from_raw_fd(number) });
        let address = Address::kernel();
        // Its number: the kernel chooses one.
        // SAFETY: the kernel reads a local structure of the length that is given.
        check(unsafe { libc::bind(number, (&raw const address.0).cast(), Address::LENGTH) })?;
        Ok(socket)
    }

    /// Hears from now on what is sent to a group.
    ///
    /// # Errors
    /// The kernel's, for instance that there is no such group.
    pub fn join(&self, group: u32) -> Result<(), Errno> {
        let length = libc::socklen_t::try_from(size_of::<u32>()).expect("four");
        // SAFETY: the kernel reads a local number of the length that is given.
        check(unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                libc::SOL_NETLINK,
                libc::NETLINK_ADD_MEMBERSHIP,
                (&raw const group).cast(),
                length,
            )
        })
        .map(drop)
    }

    /// Sends a message to the kernel.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send(&self, message: &[u8]) -> Result<(), Errno> {
        let address = Address::kernel();
        // SAFETY: the kernel reads the slice and a local structure of the length that is given.
        check_count(unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                message.as_ptr().cast(),
                message.len(),
                0,
                (&raw const address.0).cast(),
                Address::LENGTH,
            )
        })
        .map(drop)
    }

    /// What comes next from the kernel, within `limit`; what other processes send is passed over, and what does not fit
    /// into `bytes` is cut off.
    ///
    /// # Errors
    /// [`Errno::TIMED_OUT`] if nothing comes; [`Errno::NO_BUFFERS`] if something was lost; otherwise the kernel's.
    pub fn receive(&self, bytes: &mut [u8], limit: Duration) -> Result<usize, Errno> {
        loop {
            self.wait(limit)?;
            let mut from = Address::kernel();
            let mut length = Address::LENGTH;
            // SAFETY: the kernel fills the slice, and a local structure up to the length that is given.
            let count = check_count(unsafe {
                libc::recvfrom(
                    self.0.as_raw_fd(),
                    bytes.as_mut_ptr().cast(),
                    bytes.len(),
                    0,
                    (&raw mut from.0).cast(),
                    &raw mut length,
                )
            })?;
            if from.0.nl_pid == 0 {
                return Ok(count);
            }
        }
    }

    fn wait(&self, limit: Duration) -> Result<(), Errno> {
        let mut one = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let limit = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one local structure, as is said.
        match check(unsafe { libc::poll(&raw mut one, 1, limit) })? {
            0 => Err(Errno::TIMED_OUT),
            _ => Ok(()),
        }
    }
}

/// The kernel's address, or a place for another's.
struct Address(libc::sockaddr_nl);

impl Address {
    const LENGTH: libc::socklen_t = 12;

    fn kernel() -> Address {
        const { assert!(size_of::<libc::sockaddr_nl>() == 12) };
        // SAFETY: plain data for which all zeroes is a value.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).expect("it is small");
        Address(address)
    }
}
