//! `whoami`: shows who the caller is at the gateway, and with which credential.

use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    args::ConnectArgs,
    client::{self, Client, CurrentUser, unexpected_response},
    exit::{Exit, Failure},
    output::{Output, Style},
};

/// The credential of the command.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CredentialInfo {
    /// `COUNTERSIGN_KEY`, or the file of `countersign login`.
    source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// `true` if it is renewed before it expires.
    is_renewed: bool,
}

pub fn run(args: &ConnectArgs, out: &mut Output) -> Result<Exit, Failure> {
    client::run(args, async |client| {
        let answer = client.get(&["me"], &[]).await?;
        // Read after the request, which may have renewed it.
        let credential = CredentialInfo::for_client(&client)?;
        if client.json {
            let mut account: Map<String, Value> = answer.read()?;
            let credential = serde_json::to_value(&credential).map_err(unexpected_response)?;
            account.insert("credential".to_owned(), credential);
            out.write_json(&Value::Object(account).to_string())?;
        } else {
            print(&answer.read()?, &credential, &client.name, out)?;
        }
        Ok(Exit::Ok)
    })
}

impl CredentialInfo {
    /// Describes the credential of a client's requests.
    fn for_client(client: &Client) -> Result<Self, Failure> {
        Ok(match client.stored_login()? {
            None => Self { source: "COUNTERSIGN_KEY".to_owned(), issuer: None, expires_at: None, is_renewed: false },
            Some(login) => Self {
                source: client.logins()?.path(),
                issuer: Some(login.client.issuer),
                expires_at: login.expires_at.map(|end| end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
                is_renewed: login.refresh_token.is_some(),
            },
        })
    }

    /// Describes when the credential ends.
    fn describe_end(&self) -> String {
        match (&self.issuer, &self.expires_at, self.is_renewed) {
            (None, ..) => "when the key is revoked".to_owned(),
            (_, _, true) => {
                let end = self.expires_at.as_ref().map(|end| format!(" (the access token: {end})")).unwrap_or_default();
                format!("when the provider no longer renews it{end}")
            }
            (_, Some(end), false) => end.clone(),
            (_, None, false) => "when the provider says".to_owned(),
        }
    }
}

fn print(user: &CurrentUser, credential: &CredentialInfo, gateway: &str, out: &mut Output) -> Result<(), Failure> {
    let CurrentUser { name, role, groups, .. } = user;
    out.write_styled_line(Style::Bold, user.shown_name())?;
    let source = match &credential.issuer {
        Some(issuer) => format!("a sign-in with {issuer}, from {}", credential.source),
        None => format!("a key, from {}", credential.source),
    };
    let groups = if groups.is_empty() { "none".to_owned() } else { groups.join(", ") };
    for (label, value) in [
        ("gateway", gateway),
        ("name", name),
        ("role", role),
        ("groups", &groups),
        ("credential", &source),
        ("ends", &credential.describe_end()),
    ] {
        out.write_line(&format!("  {label:<12}{value}"))?;
    }
    Ok(())
}
