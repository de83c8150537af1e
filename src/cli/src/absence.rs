//! `people away|back`: sets and ends the caller's own absence, over REST.

use serde::Deserialize;
use serde_json::json;

use super::{
    args::{ConnectArgs, storage::AwayArgs},
    client,
    exit::{Exit, Failure},
    output::{Output, print_note},
};

#[derive(Deserialize)]
struct AbsenceState {
    absence: Option<OwnAbsence>,
    groups: Vec<String>,
}

#[derive(Deserialize)]
struct OwnAbsence {
    deputy: String,
    until: String,
}

pub fn set(args: &AwayArgs, out: &mut Output) -> Result<Exit, Failure> {
    let body = json!({ "until": args.until, "deputy": args.deputy });
    client::run(&args.connect, async |client| {
        let answer = client.put(&["account", "absence"], &body).await?;
        client.print(&answer, out, |AbsenceState { absence, groups }, out| {
            let Some(OwnAbsence { deputy, until }) = absence else {
                return Ok(out.write_line("The absence has ended already.")?);
            };
            if groups.is_empty() {
                print_note("No group of `policy.groups` lists you by name, so your deputy may decide nothing more than before.");
            }
            let groups = if groups.is_empty() { "no group".to_owned() } else { groups.join(", ") };
            Ok(out.write_line(&format!("You are away until {until}; until then, {deputy} may decide for {groups}."))?)
        })
    })
}

pub fn end(args: &ConnectArgs, out: &mut Output) -> Result<Exit, Failure> {
    client::run(args, async |client| {
        let answer = client.delete(&["account", "absence"]).await?;
        client.print_line(&answer, out, "You are back. What your deputy has approved stays approved.")
    })
}
