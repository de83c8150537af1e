//! A gateway with its own certificate, and curl to reach it.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;

use super::{Gateway, Options, Process, eventually, published_address};

/// Creates a certificate of localhost and its key in a folder, as `cert.pem` and `key.pem`. Returns their paths.
pub fn create_certificate(folder: &Path) -> (PathBuf, PathBuf) {
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (cert, key)
}

/// A `countersign serve` with TLS.
pub struct TlsGateway {
    pub process: Process,
    pub home: TempDir,
    pub base: String,
    pub cert: PathBuf,
}

impl TlsGateway {
    /// Starts the gateway, and returns when it answers.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Starts it like [`TlsGateway::start`], with extra configuration.
    pub fn start_with(more: &str) -> Self {
        // Both programs come with Debian; without them TLS cannot be tested here.
        for tool in ["openssl", "curl"] {
            assert!(Command::new(tool).arg("--version").output().is_ok(), "this test needs {tool}");
        }
        let home = tempfile::tempdir().unwrap();
        let (cert, key) = create_certificate(home.path());
        let config = format!("tls:\n  cert: {}\n  key: {}\n{more}", cert.display(), key.display());
        let mut process = Gateway::spawn(home.path(), &Options { config: Some(&config), ..Options::default() });
        let Some(address) = published_address(&mut process, &home.path().join("data")) else {
            panic!("{}", std::fs::read_to_string(home.path().join("log")).unwrap());
        };
        let mut tls = Self { process, home, base: format!("https://localhost:{}", address.port()), cert };
        eventually("it answers over TLS", || {
            let ended = tls.process.0.try_wait().unwrap();
            assert!(ended.is_none(), "{}", std::fs::read_to_string(tls.home.path().join("log")).unwrap());
            tls.run(&["/health"]).status.success().then_some(())
        });
        tls
    }

    pub fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// Returns a curl command with these arguments; the last one is a path.
    pub fn curl(&self, args: &[&str]) -> Command {
        let (path, args) = args.split_last().unwrap();
        let mut command = Command::new("curl");
        command.args(["-sS", "--cacert"]).arg(&self.cert).args(args).arg(format!("{}{path}", self.base));
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.curl(args).output().unwrap()
    }

    /// Sends SIGTERM, and expects exit code 0.
    pub fn stop(mut self) {
        self.process.terminate();
        assert_eq!(self.process.wait_for_exit().code(), Some(0));
    }
}
