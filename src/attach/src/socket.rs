//! The Unix socket of a data directory: its path, binding it without exposing it to other users, and checking peers.

use std::{
    fs,
    io::{self, ErrorKind},
    os::{
        fd::OwnedFd,
        unix::fs::{FileTypeExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use tokio::net::{UnixListener, UnixStream};

use countersign_runtime::data_dir::DataLock;

/// The name of the socket in the data directory.
pub const SOCKET_FILE: &str = "gateway.sock";
/// The name under which the socket is bound before it gets its mode and its final name. Both names have the same length,
/// so that one limit on the path applies.
const TEMPORARY_FILE: &str = "gateway.new_";
/// `sun_path` holds 108 bytes including the final NUL.
const MAX_PATH_BYTES: usize = 107;

/// Errors of the socket or its peer.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("{0} exists and is not a socket; move it away")]
    NotASocket(PathBuf),
    #[error(
        "the path {0} is longer than the {MAX_PATH_BYTES} bytes that the system allows for a socket, and /proc is not there to \
         shorten it; choose a data directory with a shorter path (--data DIR)"
    )]
    PathTooLong(PathBuf),
    #[error("cannot {operation} the socket {path}: {source}")]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} belongs to user {peer_user}, and this process runs as user {user}")]
    OtherUser { path: PathBuf, peer_user: u32, user: u32 },
}

/// A path that fits into `sun_path`, with the directory that must stay open while it is used.
struct ShortPath {
    path: PathBuf,
    _dir: Option<OwnedFd>,
}

/// Returns the full path of the socket, which may be too long to bind.
pub fn path(data: &Path) -> PathBuf {
    data.join(SOCKET_FILE)
}

/// Returns a path of the file in the data directory that is short enough for a socket.
fn short_path(data: &Path, file: &str) -> Result<ShortPath, SocketError> {
    let direct = data.join(file);
    if direct.as_os_str().len() <= MAX_PATH_BYTES {
        return Ok(ShortPath { path: direct, _dir: None });
    }
    // `/proc/self/fd` gives the directory a path of fixed length.
    let dir: OwnedFd = fs::File::open(data)
        .map_err(|source| SocketError::Io { operation: "reach", path: direct.clone(), source })?
        .into();
    let path = PathBuf::from(format!("/proc/self/fd/{}/{file}", std::os::fd::AsRawFd::as_raw_fd(&dir)));
    if cfg!(target_os = "linux") && path.parent().is_some_and(Path::exists) {
        Ok(ShortPath { path, _dir: Some(dir) })
    } else {
        Err(SocketError::PathTooLong(direct))
    }
}

/// The listening socket. Its file is removed when it is dropped.
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Binds `<data>/gateway.sock` with mode 0600, and replaces the socket of an earlier gateway. Requires a tokio runtime.
    ///
    /// The lock of the data directory guarantees that no gateway serves the old socket.
    ///
    /// # Errors
    /// Fails if the name belongs to something other than a socket, or if the file system fails.
    pub fn bind(data: &Path, _lock: &DataLock) -> Result<Self, SocketError> {
        let path = path(data);
        for stale in [&path, &data.join(TEMPORARY_FILE)] {
            match fs::symlink_metadata(stale) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Ok(meta) if meta.file_type().is_socket() => {
                    let fail = |source| SocketError::Io { operation: "remove", path: stale.clone(), source };
                    fs::remove_file(stale).map_err(fail)?;
                }
                Ok(_) => return Err(SocketError::NotASocket(stale.clone())),
                Err(source) => return Err(SocketError::Io { operation: "inspect", path: stale.clone(), source }),
            }
        }
        let fail = |source| SocketError::Io { operation: "bind", path: path.clone(), source };
        let temporary = short_path(data, TEMPORARY_FILE)?;
        let listener = UnixListener::bind(&temporary.path).map_err(fail)?;
        // The final name is given only after the mode is set.
        fs::set_permissions(&temporary.path, fs::Permissions::from_mode(0o600)).map_err(fail)?;
        fs::rename(data.join(TEMPORARY_FILE), &path).map_err(fail)?;
        Ok(Self { listener, path })
    }

    /// Waits for the next connection of this user. Connections of other users are logged and closed.
    ///
    /// Cancel-safe. Waits while no file descriptors are free.
    ///
    /// # Errors
    /// Fails if the socket is permanently unusable.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => match check_peer(&stream, &self.path) {
                    Ok(()) => return Ok(stream),
                    Err(error) => tracing::warn!(%error, "a connection to the socket was refused"),
                },
                Err(error) if is_temporary(&error) => {
                    tracing::warn!(%error, "no connection can be accepted now");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // This process still holds the lock of the data directory, so the file belongs to it.
        let _ = fs::remove_file(&self.path);
    }
}

fn is_temporary(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::CONNABORTED | Errno::INTR))
}

/// Rejects a peer that runs as another user (`SO_PEERCRED`).
///
/// # Errors
/// [`SocketError::OtherUser`], or an error of the system call.
pub fn check_peer(stream: &UnixStream, path: &Path) -> Result<(), SocketError> {
    let fail = |source| SocketError::Io { operation: "check the peer of", path: path.to_owned(), source };
    let peer_user = stream.peer_cred().map_err(fail)?.uid();
    let user = rustix::process::geteuid().as_raw();
    if peer_user == user { Ok(()) } else { Err(SocketError::OtherUser { path: path.to_owned(), peer_user, user }) }
}

/// Connects to the socket. Returns `None` if nobody listens.
///
/// # Errors
/// Fails if the socket cannot be reached for another reason, or if its peer runs as another user.
pub async fn connect(data: &Path) -> Result<Option<UnixStream>, SocketError> {
    let path = path(data);
    if !path.exists() {
        return Ok(None);
    }
    let short = short_path(data, SOCKET_FILE)?;
    match UnixStream::connect(&short.path).await {
        Ok(stream) => check_peer(&stream, &path).map(|()| Some(stream)),
        // A process that ends resets connections that it has not accepted.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset
            ) =>
        {
            Ok(None)
        }
        Err(source) => Err(SocketError::Io { operation: "connect to", path, source }),
    }
}

/// Returns `true` if a gateway listens on the socket.
pub fn is_listening(data: &Path) -> bool {
    short_path(data, SOCKET_FILE).is_ok_and(|short| std::os::unix::net::UnixStream::connect(&short.path).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_runtime::data_dir::lock_data_dir;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    async fn connect_both_ends(data: &Path) {
        let lock = lock_data_dir(data).unwrap();
        assert!(connect(data).await.unwrap().is_none() && !is_listening(data), "nobody listens yet");
        let listener = Listener::bind(data, &lock).unwrap();
        assert!(is_listening(data));
        drop(listener.accept().await.unwrap());
        assert_eq!(mode(&listener.path), 0o600);
        let (near, far) = tokio::join!(connect(data), listener.accept());
        let near = near.unwrap().expect("connected");
        drop((near, far.unwrap()));
        drop(listener);
        assert!(!path(data).exists());
    }

    #[tokio::test]
    async fn socket_is_private_and_removed_on_drop() {
        let dir = tempfile::tempdir().unwrap();
        connect_both_ends(dir.path()).await;
    }

    #[tokio::test]
    async fn overlong_path_is_bound_through_proc() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120)).join("e".repeat(120));
        connect_both_ends(&deep).await;
    }

    #[tokio::test]
    async fn reset_by_a_listener_that_ends_means_nobody_listens() {
        let dir = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(path(dir.path())).unwrap();
        let mut connecting = std::pin::pin!(connect(dir.path()));
        assert!(futures_util::poll!(&mut connecting).is_pending());
        drop(listener);
        assert!(connecting.await.unwrap().is_none());
    }

    #[tokio::test]
    async fn stale_socket_is_replaced_but_other_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let lock = lock_data_dir(dir.path()).unwrap();
        // A listener of `std` does not remove its file.
        drop(std::os::unix::net::UnixListener::bind(path(dir.path())).unwrap());
        assert!(path(dir.path()).exists());
        assert!(connect(dir.path()).await.unwrap().is_none(), "nobody listens on a stale socket");
        drop(Listener::bind(dir.path(), &lock).unwrap());
        fs::write(path(dir.path()), "precious").unwrap();
        assert!(matches!(Listener::bind(dir.path(), &lock), Err(SocketError::NotASocket(_))));
        assert_eq!(fs::read_to_string(path(dir.path())).unwrap(), "precious");
    }
}
