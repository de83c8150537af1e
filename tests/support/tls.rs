//! A gateway behind a certificate of its own, and curl to reach it by.

use std::{
    path::PathBuf,
    process::{Command, Output},
};

use tempfile::TempDir;

use super::{Gateway, Options, Process, address, eventually};

/// `countersign serve` with TLS.
pub struct Tls {
    pub process: Process,
    pub home: TempDir,
    pub base: String,
    pub cert: PathBuf,
}

impl Tls {
    /// Returns when it answers.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// As [`Tls::start`], with more of a configuration.
    #[must_use]
    pub fn start_with(more: &str) -> Self {
        // Both come with Debian; without them there is nothing to speak TLS with here.
        for tool in ["openssl", "curl"] {
            assert!(Command::new(tool).arg("--version").output().is_ok(), "this test needs {tool}");
        }
        let home = tempfile::tempdir().unwrap();
        let (cert, key) = (home.path().join("cert.pem"), home.path().join("key.pem"));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
            .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout"])
            .arg(&key)
            .arg("-out")
            .arg(&cert)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let config = format!("tls:\n  cert: {}\n  key: {}\n{more}", cert.display(), key.display());
        let mut process = Gateway::spawn(home.path(), &Options { config: Some(&config), ..Options::default() });
        let Some(address) = address(&mut process, &home.path().join("data")) else {
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

    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// curl with these arguments; the last one is a path.
    #[must_use]
    pub fn curl(&self, args: &[&str]) -> Command {
        let (path, args) = args.split_last().unwrap();
        let mut command = Command::new("curl");
        command.args(["-sS", "--cacert"]).arg(&self.cert).args(args).arg(format!("{}{path}", self.base));
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.curl(args).output().unwrap()
    }

    /// SIGTERM, and a good end.
    pub fn stop(mut self) {
        self.process.terminate();
        assert_eq!(self.process.ended().code(), Some(0));
    }
}
