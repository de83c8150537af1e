//! `<data>/gateway.json`: the addresses of the gateway of a data directory. The gateway writes it when its ports are open,
//! and `open` and `changes` read it. It may be out of date, so a reader may find nobody listening there.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::proof::ProofSecret;
use countersign_config::Config;
use countersign_runtime::{
    data_dir::DataLock,
    files::{none_if_missing, replace_file},
};

/// The name of the file in the data directory.
pub const GATEWAY_FILE: &str = "gateway.json";

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayFile {
    pub pid: u32,
    pub version: String,
    /// The URL for programs on this machine: `http://127.0.0.1:8080`.
    pub url: String,
    /// The URL for people, if it is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_url: Option<String>,
    /// The gateway was started by `countersign stdio`.
    #[serde(default)]
    pub detached: bool,
    /// The secret by which the gateway proves its identity. Older versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<ProofSecret>,
}

impl GatewayFile {
    /// Describes this process, which listens on `address`.
    pub fn from_process(config: &Config, address: SocketAddr, detached: bool, proof: Option<ProofSecret>) -> Self {
        Self {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            url: config.local_url(address),
            public_url: config.public_url.as_ref().map(|url| url.trim_end_matches('/').to_owned()),
            detached,
            proof,
        }
    }

    /// Returns the base URL of links that people open.
    pub fn link_base(&self) -> &str {
        self.public_url.as_deref().unwrap_or(&self.url)
    }

    /// Reads the file of a data directory. Returns `None` if it is missing or invalid.
    ///
    /// # Errors
    /// Errors of the file system, such as for the directory of another user.
    pub fn read(data: &Path) -> io::Result<Option<Self>> {
        let text = none_if_missing(fs::read(data.join(GATEWAY_FILE)))?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// Writes the file, which is removed when the returned guard is dropped. Requires the lock of the data directory.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn publish(&self, data: &Path, _lock: &DataLock) -> io::Result<PublishedFile> {
        let path = data.join(GATEWAY_FILE);
        replace_file(&path, &serde_json::to_vec_pretty(self)?, 0o600)?;
        Ok(PublishedFile { path })
    }
}

/// Removes the file when it is dropped.
#[must_use]
#[derive(Debug)]
pub struct PublishedFile {
    path: PathBuf,
}

impl Drop for PublishedFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_runtime::data_dir::lock_data_dir;

    #[test]
    fn file_is_written_read_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(GatewayFile::read(dir.path()).unwrap(), None);
        let lock = lock_data_dir(dir.path()).unwrap();
        let config = Config { public_url: Some("https://g.example/".into()), ..Config::default() };
        let file = GatewayFile::from_process(&config, "0.0.0.0:81".parse().unwrap(), true, ProofSecret::new());
        assert_eq!(file.url, "http://127.0.0.1:81");
        assert_eq!(file.link_base(), "https://g.example");
        let published = file.publish(dir.path(), &lock).unwrap();
        assert_eq!(GatewayFile::read(dir.path()).unwrap(), Some(file));
        drop(published);
        assert_eq!(GatewayFile::read(dir.path()).unwrap(), None);
        let path = dir.path().join(GATEWAY_FILE);
        fs::write(&path, "{\"pid\":").unwrap();
        assert_eq!(GatewayFile::read(dir.path()).unwrap(), None);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(GatewayFile::read(dir.path()).is_err(), "an error is not taken for a missing file");
    }
}
