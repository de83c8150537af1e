//! `servers connect|disconnect`: connects the account of the key's person at a server, for which a browser asks for consent, and
//! removes it.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::find_server;
use crate::{
    args::servers::ConnectAccountArgs,
    browser,
    client::{Client, CurrentUser, address::dashboard_page},
    exit::{Exit, Failure},
    output::{Output, one_line, print_note},
};
use countersign_rest::server_accounts::Disconnected;

/// The pause between two checks of whether the account is connected.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The account that a server requires, as `GET /api/servers` describes it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Account {
    pub connected: bool,
    pub problem: Option<String>,
    may_connect: bool,
}

impl Account {
    /// Returns `true` unless somebody must connect it, for the first time or again.
    fn is_settled(&self) -> bool {
        self.connected && self.problem.is_none()
    }

    /// Returns the advice for an account that must be connected.
    pub fn advice(&self, server: &str) -> Option<String> {
        if self.is_settled() {
            return None;
        }
        let state = if self.connected { "connected" } else { "not connected" };
        let problem = self.problem.as_ref().map_or(String::new(), |problem| format!(" ({})", one_line(problem)));
        Some(if self.may_connect {
            format!("{state}{problem}; run `countersign servers connect {}`", one_line(server))
        } else {
            format!("{state}{problem}; an admin has to connect it")
        })
    }
}

/// Prints the link to the page that connects a server, opens it, and waits until the account is connected.
pub(super) async fn connect(client: &Client, args: &ConnectAccountArgs, out: &mut Output) -> Result<Exit, Failure> {
    let name = one_line(&args.name);
    if find_account(client, &args.name).await?.is_settled() {
        print_note(&format!("{name} is connected already."));
        return Ok(Exit::Ok);
    }
    let CurrentUser { owner, .. } = client.get(&["me"], &[]).await?.read()?;
    let link = dashboard_page(&client.name, &["servers", &args.name, "connect"]);
    if client.json {
        out.write_json(&json!({ "url": link }).to_string())?
    } else {
        out.write_line(&link)?
    }
    out.finish()?;
    let is_open = !args.print && browser::open(&link);
    let instruction = if is_open { "Opening the page." } else { "Open this link in your browser." };
    print_note(&format!("{instruction} Sign in there as {}. Waiting for the connection.", one_line(&owner)));
    let deadline = Instant::now() + Duration::from_secs(args.wait);
    while Instant::now() < deadline {
        tokio::time::sleep(POLL_INTERVAL).await;
        if find_account(client, &args.name).await?.is_settled() {
            print_note(&format!("{name} is connected."));
            return Ok(Exit::Ok);
        }
    }
    Err(Failure::new(Exit::Failed, format!("{name} was not connected within {} s", args.wait)))
}

/// Returns the account that a server requires.
///
/// # Errors
/// Fails if there is no such server, or if it needs no account.
async fn find_account(client: &Client, name: &str) -> Result<Account, Failure> {
    let shown_name = one_line(name);
    let server = find_server(client, name).await?;
    let server = server.ok_or_else(|| Failure::new(Exit::NotFound, format!("there is no server {shown_name}")))?;
    server.account.ok_or_else(|| Failure::new(Exit::Failed, format!("{shown_name} needs no account")))
}

/// Removes the account with its tokens.
pub(super) async fn disconnect(client: &Client, name: &str, out: &mut Output) -> Result<Exit, Failure> {
    let answer = client.delete(&["servers", name, "connection"]).await?;
    client.print(&answer, out, |Disconnected { disconnected }, out| {
        let outcome = if disconnected { "is disconnected" } else { "was not connected" };
        Ok(out.write_line(&format!("{name} {outcome}."))?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_account_names_the_remedy() {
        let advice = |account| serde_json::from_value::<Account>(account).unwrap().advice("notion");
        let account = json!({ "as": "person", "connected": false, "mayConnect": true, "scopes": [] });
        assert_eq!(advice(account).unwrap(), "not connected; run `countersign servers connect notion`");
        let account = json!({ "as": "gateway", "connected": false, "mayConnect": false, "problem": "a\u{1b}b" });
        assert_eq!(advice(account).unwrap(), "not connected (a\\u{1b}b); an admin has to connect it");
        let account = json!({ "connected": true, "mayConnect": true, "problem": "must be connected again" });
        let expected = "connected (must be connected again); run `countersign servers connect notion`";
        assert_eq!(advice(account).unwrap(), expected, "its token may lack permissions");
        assert_eq!(advice(json!({ "connected": true, "mayConnect": true })), None);
    }
}
