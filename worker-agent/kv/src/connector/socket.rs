//! Sockets that keep the borders of messages, and the processes at their other ends.

use super::wire::MESSAGE_BYTES_MAX;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, chmod, stat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType,
};
use rustix::process::{Pid, PidfdFlags, getuid, pidfd_open};
use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Connections that wait for being accepted.
const BACKLOG: i32 = 64;

/// A socket that only processes of this user reach.
#[derive(Debug)]
pub(super) struct PacketListener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and number of the socket's file.
    file: (u64, u64),
}

impl PacketListener {
    /// Listens at a path. A socket that an agent left behind is replaced.
    pub(super) fn bind(path: &Path) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        match rustix::net::connect(socket()?, &address) {
            Ok(()) => return Err(io::ErrorKind::AddrInUse.into()),
            Err(Errno::CONNREFUSED) => rustix::fs::unlink(path)?,
            Err(_) => {}
        }
        let socket = socket()?;
        rustix::net::bind(&socket, &address)?;
        // Nobody can connect before `listen`, so the mode comes in time.
        chmod(path, Mode::RUSR | Mode::WUSR)?;
        let file = identity(path)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Self { socket, path: path.to_owned(), file })
    }

    /// The next connection.
    pub(super) fn accept(&self) -> io::Result<PacketSocket> {
        let socket = rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC)?;
        Ok(socket.into())
    }
}

impl AsFd for PacketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for PacketListener {
    fn drop(&mut self) {
        // Another agent may have its socket there by now.
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct PacketSocket {
    socket: OwnedFd,
}

/// A message that came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received<'a> {
    /// The message.
    Packet(&'a [u8]),
    /// No message is there.
    Nothing,
    /// The other end is closed.
    End,
}

impl PacketSocket {
    /// The next message, if one is there. Files that come with it are closed.
    pub(super) fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Received<'a>> {
        self.receive_with(buffer, &mut None)
    }

    /// The next message, if one is there, and the file that comes with it. Further ones are closed.
    pub(super) fn receive_with<'a>(
        &self,
        buffer: &'a mut [u8],
        file: &mut Option<OwnedFd>,
    ) -> io::Result<Received<'a>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry(|| {
            let mut parts = [IoSliceMut::new(buffer)];
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags)
        });
        *file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        match received {
            Ok(message) if message.flags.contains(ReturnFlags::TRUNC) => {
                let reason = format!("a message of more than {MESSAGE_BYTES_MAX} bytes");
                Err(io::Error::new(io::ErrorKind::InvalidData, reason))
            }
            Ok(message) if message.bytes == 0 => Ok(Received::End),
            Ok(message) => Ok(Received::Packet(&buffer[..message.bytes])),
            Err(Errno::AGAIN) => Ok(Received::Nothing),
            Err(Errno::CONNRESET) => Ok(Received::End),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a message, with a file if there is one. `false`: there is no room for it now.
    pub(super) fn send(&self, packet: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let files = file.as_slice();
        let sent = retry(|| {
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !files.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(files));
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            rustix::net::sendmsg(&self.socket, &[IoSlice::new(packet)], &mut control, flags)
        });
        match sent {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the other end has not closed the connection.
    pub(super) fn is_open(&self) -> bool {
        let mut ends = [PollFd::new(&self.socket, PollFlags::empty())];
        // HUP and ERR are told unasked.
        matches!(wait(&mut ends, Some(Duration::ZERO)), Ok(false))
    }

    /// Ends both directions. Who waits for the connection sees its end.
    pub(super) fn shut(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Hears nothing more, while the other end still hears what is sent. Who waits for the connection
    /// sees its end.
    pub(super) fn deafen(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Read);
    }

    /// The process that connected; none if it is of another user.
    pub(super) fn peer(&self) -> io::Result<Option<EngineProcess>> {
        let peer = rustix::net::sockopt::socket_peercred(&self.socket)?;
        if peer.uid != getuid() {
            return Ok(None);
        }
        Ok(Some(EngineProcess::open(peer.pid)?))
    }
}

impl From<OwnedFd> for PacketSocket {
    fn from(socket: OwnedFd) -> Self {
        Self { socket }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A process, and no other that gets its number later.
#[derive(Debug)]
pub(super) struct EngineProcess {
    pid: Pid,
    pidfd: OwnedFd,
}

impl EngineProcess {
    /// The process that has the number now.
    pub(super) fn open(pid: Pid) -> Result<Self, Errno> {
        Ok(Self { pid, pidfd: pidfd_open(pid, PidfdFlags::empty())? })
    }

    /// Its number.
    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Whether it has ended, and maps nothing any more.
    pub(super) fn is_dead(&self) -> bool {
        let mut ready = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(wait(&mut ready, Some(Duration::ZERO)), Ok(true))
    }
}

impl AsFd for EngineProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Waits of this process in which nothing was ready in time.
#[cfg(test)]
pub(super) static EXPIRED_WAITS: std::sync::atomic::AtomicUsize =
    std::sync::atomic::AtomicUsize::new(0);

/// Waits until something is ready; `false` if nothing is in time.
pub(super) fn wait(ready: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<bool> {
    let time = limit.map(|limit| Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    let is_ready = retry(|| poll(ready, time.as_ref()))? > 0;
    #[cfg(test)]
    if !is_ready && limit > Some(Duration::ZERO) {
        EXPIRED_WAITS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    Ok(is_ready)
}

fn socket() -> Result<OwnedFd, Errno> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)
}

fn identity(path: &Path) -> Result<(u64, u64), Errno> {
    stat(path).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Calls again where a signal came between.
fn retry<T>(call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    rustix::io::retry_on_intr(call)
}
