//! The tokens that `countersign login` got: one entry for each gateway, in a file that only its owner can read.
//!
//! A file beside it is locked while the entries are changed, so that two commands do not spend the same refresh token.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::PathBuf,
};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    exit::{Exit, Failure},
    output::one_line,
};
use countersign_auth::tokens::public_client::{ClientSettings, GrantError, PublicClient, TokenResponse};
use countersign_config::{Authorities, Environment};
use countersign_runtime::{
    background,
    files::{none_if_missing, replace_file},
};

/// The time before its expiry at which an access token is due for renewal.
const RENEWAL_MARGIN: SignedDuration = SignedDuration::from_secs(30);

/// The tokens for one gateway.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredLogin {
    #[serde(flatten)]
    pub client: ClientSettings,
    pub access_token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_token: Option<String>,
    /// The expiry of the access token, if the provider named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

impl StoredLogin {
    pub fn new(client: ClientSettings, tokens: TokenResponse, now: Timestamp) -> Self {
        let lifetime = tokens.expires_in.and_then(|seconds| i64::try_from(seconds).ok()).map(SignedDuration::from_secs);
        let expires_at = lifetime.and_then(|lifetime| now.checked_add(lifetime).ok());
        let TokenResponse { access_token, refresh_token, .. } = tokens;
        Self { client, access_token, refresh_token, expires_at }
    }

    /// Returns `true` if the access token ends within `margin`.
    fn ends_within(&self, margin: SignedDuration, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end.duration_since(now) <= margin)
    }
}

type Entries = BTreeMap<String, StoredLogin>;

/// The file with the tokens for all gateways.
#[derive(Clone)]
pub struct LoginFile {
    path: PathBuf,
}

impl LoginFile {
    /// Returns the file of this user, which may not exist yet.
    pub fn locate(env: &Environment) -> Result<Self, Failure> {
        let no_folder = || Failure::new(Exit::Config, "neither HOME nor XDG_CONFIG_HOME is set to an absolute path");
        Ok(Self { path: env.logins_file().ok_or_else(no_folder)? })
    }

    pub fn path(&self) -> String {
        one_line(&self.path.display().to_string()).into_owned()
    }

    /// Returns the tokens for a gateway.
    pub fn find(&self, gateway: &str) -> Result<Option<StoredLogin>, Failure> {
        Ok(self.read()?.remove(gateway))
    }

    pub fn is_empty(&self) -> Result<bool, Failure> {
        Ok(self.read()?.is_empty())
    }

    /// Stores the tokens for a gateway in place of earlier ones.
    pub async fn insert(&self, gateway: &str, login: StoredLogin) -> Result<(), Failure> {
        let _lock = self.lock().await?;
        let mut entries = self.read()?;
        entries.insert(gateway.to_owned(), login);
        self.write(&entries)
    }

    /// Removes the tokens for a gateway. Returns them if there were any.
    pub async fn remove(&self, gateway: &str) -> Result<Option<StoredLogin>, Failure> {
        if self.find(gateway)?.is_none() {
            return Ok(None);
        }
        let _lock = self.lock().await?;
        let mut entries = self.read()?;
        let removed_login = entries.remove(gateway);
        self.write(&entries)?;
        Ok(removed_login)
    }

    /// Returns an access token for the gateway. One that is about to end is renewed before, at a provider whose certificate the
    /// public authorities or these ones have signed.
    pub async fn access_token(&self, gateway: &str, authorities: Option<Authorities>) -> Result<String, Failure> {
        let signed_out = || {
            let message = format!("nobody is signed in to {} any more: run `countersign login`", one_line(gateway));
            Failure::new(Exit::NotAuthorized, message)
        };
        let login = self.find(gateway)?.ok_or_else(signed_out)?;
        if !login.ends_within(RENEWAL_MARGIN, Timestamp::now()) {
            return Ok(login.access_token);
        }
        let _lock = self.lock().await?;
        // Another command may have renewed it in the meantime.
        let mut entries = self.read()?;
        let login = entries.get(gateway).ok_or_else(signed_out)?;
        let now = Timestamp::now();
        if !login.ends_within(RENEWAL_MARGIN, now) {
            return Ok(login.access_token.clone());
        }
        match renew(login, authorities, now).await {
            Ok(renewed) => {
                let token = renewed.access_token.clone();
                entries.insert(gateway.to_owned(), renewed);
                self.write(&entries)?;
                Ok(token)
            }
            Err(_) if !login.ends_within(SignedDuration::ZERO, now) => Ok(login.access_token.clone()),
            Err(error @ GrantError::Refused(_)) => {
                let message = format!("the sign-in to {gateway} has ended ({error}): run `countersign login`");
                Err(Failure::new(Exit::NotAuthorized, one_line(&message)))
            }
            Err(error) => Err(Failure::new(Exit::Unavailable, one_line(&error.to_string()))),
        }
    }

    /// Waits until no other process changes the file. The lock ends with the returned value.
    async fn lock(&self) -> Result<File, Failure> {
        let path = self.path.with_extension("lock");
        let lock = move || -> io::Result<File> {
            if let Some(folder) = path.parent() {
                DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            }
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            file.lock()?;
            Ok(file)
        };
        let locked = background::spawn_blocking(lock).await.unwrap_or_else(|error| Err(io::Error::other(error)));
        locked.map_err(|error| self.failure(&format!("cannot be locked: {error}")))
    }

    fn read(&self) -> Result<Entries, Failure> {
        let read_failure = |error: io::Error| self.failure(&format!("cannot be read: {error}"));
        let Some(bytes) = none_if_missing(fs::read(&self.path)).map_err(read_failure)? else {
            return Ok(Entries::new());
        };
        let mode = fs::metadata(&self.path).map_err(read_failure)?.mode();
        if mode & 0o077 != 0 {
            let problem =
                format!("has the mode {:o}, so that others may read the tokens; run `chmod 600` on it", mode & 0o777);
            return Err(self.failure(&problem));
        }
        // The text of the error could quote a token.
        serde_json::from_slice(&bytes)
            .map_err(|_| self.failure("is not a file of `countersign login`; remove it and sign in again"))
    }

    fn write(&self, entries: &Entries) -> Result<(), Failure> {
        let json = serde_json::to_vec_pretty(entries).map_err(io::Error::from);
        let write_result = json.and_then(|bytes| replace_file(&self.path, &bytes, 0o600));
        write_result.map_err(|error| self.failure(&format!("cannot be written: {error}")))
    }

    fn failure(&self, problem: &str) -> Failure {
        Failure::new(Exit::Unavailable, format!("the file {} {problem}", self.path()))
    }
}

/// Exchanges the refresh token for new tokens. The provider may keep the old refresh token valid.
async fn renew(
    login: &StoredLogin,
    authorities: Option<Authorities>,
    now: Timestamp,
) -> Result<StoredLogin, GrantError> {
    let no_token = || GrantError::Refused("no refresh token".to_owned());
    let refresh_token = login.refresh_token.clone().ok_or_else(no_token)?;
    let client = PublicClient::discover(login.client.clone(), authorities).await?;
    let mut tokens = client.refresh(&refresh_token).await?;
    tokens.refresh_token.get_or_insert(refresh_token);
    Ok(StoredLogin::new(login.client.clone(), tokens, now))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const GATEWAY: &str = "https://gw.example";

    fn logins() -> (tempfile::TempDir, LoginFile) {
        let home = tempfile::tempdir().unwrap();
        let env = Environment::new(home.path(), &[("XDG_CONFIG_HOME", home.path().to_str().unwrap())]);
        let logins = LoginFile::locate(&env).unwrap();
        (home, logins)
    }

    fn login(expires_in: Option<u64>) -> StoredLogin {
        let client = ClientSettings {
            // Nothing listens there.
            issuer: "http://127.0.0.1:1".to_owned(),
            client_id: "cli".to_owned(),
            scopes: Vec::new(),
            resource: None,
        };
        let tokens = TokenResponse { access_token: "a1".to_owned(), refresh_token: Some("r1".to_owned()), expires_in };
        StoredLogin::new(client, tokens, Timestamp::now())
    }

    #[tokio::test]
    async fn entries_are_kept_for_each_gateway() {
        let (_home, logins) = logins();
        assert!(logins.is_empty().unwrap());
        assert!(logins.remove(GATEWAY).await.unwrap().is_none());
        logins.insert(GATEWAY, login(None)).await.unwrap();
        logins.insert("https://other.example", login(Some(60))).await.unwrap();
        assert_eq!(logins.access_token(GATEWAY, None).await.unwrap(), "a1");
        assert_eq!(logins.remove(GATEWAY).await.unwrap().unwrap().refresh_token.as_deref(), Some("r1"));
        assert!(logins.find(GATEWAY).unwrap().is_none() && !logins.is_empty().unwrap());
        assert_eq!(logins.access_token(GATEWAY, None).await.unwrap_err().exit, Exit::NotAuthorized);
    }

    #[actix::test]
    async fn token_is_used_until_its_end_while_the_provider_is_away() {
        let (_home, logins) = logins();
        logins.insert(GATEWAY, login(Some(20))).await.unwrap();
        assert_eq!(logins.access_token(GATEWAY, None).await.unwrap(), "a1");
        logins.insert(GATEWAY, login(Some(0))).await.unwrap();
        assert_eq!(logins.access_token(GATEWAY, None).await.unwrap_err().exit, Exit::Unavailable);
    }

    #[tokio::test]
    async fn file_that_others_can_read_is_refused() {
        let (_home, logins) = logins();
        logins.insert(GATEWAY, login(None)).await.unwrap();
        fs::set_permissions(&logins.path, fs::Permissions::from_mode(0o644)).unwrap();
        let failure = logins.find(GATEWAY).err().unwrap();
        assert!(failure.message.contains("mode 644") && failure.message.contains("chmod 600"), "{failure}");
        fs::set_permissions(&logins.path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&logins.path, "a1").unwrap();
        assert!(!logins.find(GATEWAY).err().unwrap().message.contains("a1"), "the text of the file is secret");
    }
}
