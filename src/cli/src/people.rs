//! `people list|revoke` work directly on the store, even while its gateway runs. `people away|back` ask the gateway.

use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::json;

use super::{
    args::{
        ConnectArgs, DataCommands,
        storage::{AwayArgs, PeopleCommand},
    },
    client,
    exit::{Exit, Failure},
    keys::check_issuer,
    location_from_settings,
    output::{Output, Style, cell, print_note, print_table},
    store_settings,
};
use countersign_config::load::StoreSettings;
use countersign_domain::principal::{is_subject_name, subject_client_name, subject_name};
use countersign_store::{keys::ApiKey, people::StoredPerson};

pub fn run(args: &DataCommands<PeopleCommand>, out: &mut Output) -> Result<Exit, Failure> {
    match &args.command {
        PeopleCommand::List { json } => {
            let people = location_from_settings(&store_settings(&args.data)?)?.credentials()?.people()?;
            if *json { print_json(&people, out)? } else { print_people(&people, out)? }
        }
        PeopleCommand::Revoke { name } => revoke(&store_settings(&args.data)?, name, out)?,
        PeopleCommand::Away(args) => return set_absence(args, out),
        PeopleCommand::Back(args) => return end_absence(args, out),
    }
    Ok(Exit::Ok)
}

/// Revokes a person with their sign-ins and keys. A person whom the gateway does not know can be revoked in advance.
fn revoke(settings: &StoreSettings, name: &str, out: &mut Output) -> Result<(), Failure> {
    let (issuer, person) = parse_name(name)?;
    let store = location_from_settings(settings)?.credentials()?;
    let is_theirs = |key: &ApiKey| key.owner.as_ref() == Some(&person);
    let is_known =
        store.person(&person)?.is_some_and(|stored| stored.has_signed_in()) || store.list()?.iter().any(is_theirs);
    if !is_known {
        match check_issuer(settings, issuer) {
            // A person can be revoked even if the configuration is broken.
            Err(failure) if failure.exit == Exit::Config => {
                print_note(&format!("The issuer {issuer:?} could not be checked: {failure}"));
            }
            checked => checked?,
        }
    }
    let now = Timestamp::now();
    let sign_ins = store.revoke_person(&person, now)?;
    let mut keys = 0_usize;
    for key in store.list()?.iter().filter(|key| key.revoked_at.is_none() && is_theirs(key)) {
        keys += usize::from(store.revoke(&key.id, now)?);
    }
    let effects = format!("browser tabs signed out: {sign_ins}; keys revoked: {keys}");
    out.write_line(&format!("{person} is revoked ({effects}). Access tokens in this name are refused."))?;
    if person != name {
        print_note("The name was that of a client. The person is revoked, and so is every client that acts for them.");
    }
    if !is_known {
        print_note(
            "Nobody of this name has signed in here or owns a key, so the person is revoked in advance. If they already use access \
             tokens, compare the name with that in the audit trail.",
        );
    }
    Ok(())
}

/// Returns the issuer and the name of the person in the name of a person or of a client that acts for them.
fn parse_name(name: &str) -> Result<(&str, String), Failure> {
    let malformed =
        || Failure::new(Exit::Usage, "name the person as ISSUER#SUBJECT, as `countersign people list` does");
    let (issuer, parts) = name.split_once('#').filter(|(issuer, _)| is_subject_name(issuer)).ok_or_else(malformed)?;
    let parts =
        parts.split('#').map(|part| percent_decode_str(part).decode_utf8().ok().filter(|text| !text.is_empty()));
    let parts = parts.collect::<Option<Vec<_>>>().ok_or_else(malformed)?;
    let (subject, escaped_name) = match parts.as_slice() {
        [subject] => (subject, subject_name(issuer, subject)),
        [subject, client] => (subject, subject_client_name(issuer, subject, client)),
        _ => return Err(malformed()),
    };
    if escaped_name == name {
        return Ok((issuer, subject_name(issuer, subject)));
    }
    let message = format!("the gateway writes this name as {escaped_name:?}; check it, and write it like that");
    Err(Failure::new(Exit::Usage, message))
}

fn print_json(people: &[StoredPerson], out: &mut Output) -> Result<(), Failure> {
    let entry = |person: &StoredPerson| {
        json!({
            "name": person.name,
            "displayName": person.claims.display_name,
            "role": person.role,
            "groups": person.claims.groups,
            "updatedAt": person.updated_at,
            "revokedAt": person.revoked_at,
        })
    };
    let people = json!({ "people": people.iter().map(entry).collect::<Vec<_>>() });
    Ok(out.write_json(&serde_json::to_string_pretty(&people).unwrap_or_default())?)
}

fn print_people(people: &[StoredPerson], out: &mut Output) -> Result<(), Failure> {
    if people.is_empty() {
        print_note("Nobody has signed in with an identity provider yet (auth.oidc).");
        return Ok(());
    }
    let date = |at: Timestamp| at.strftime("%Y-%m-%d %H:%M").to_string();
    let row = |person: &StoredPerson| {
        let state = match (person.revoked_at, person.role) {
            (Some(at), _) => format!("revoked {}", date(at)),
            (None, None) => "no entry".to_owned(),
            (None, Some(_)) => "active".to_owned(),
        };
        let last_seen = if person.has_signed_in() { date(person.updated_at) } else { "never".to_owned() };
        let display_name = person.claims.display_name.as_deref().unwrap_or_default();
        let role = person.role.map_or("", |role| role.as_str());
        let groups = person.claims.groups.join(", ");
        [&person.name, display_name, role, &groups, &last_seen, &state].map(|text| cell(Style::Plain, text))
    };
    let headings = ["NAME", "PERSON", "ROLE", "GROUPS", "LAST SEEN", "STATE"];
    Ok(print_table(headings, people.iter().map(row).collect(), None, out)?)
}

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

/// Sets the caller's own absence.
fn set_absence(args: &AwayArgs, out: &mut Output) -> Result<Exit, Failure> {
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

/// Ends the caller's own absence.
fn end_absence(args: &ConnectArgs, out: &mut Output) -> Result<Exit, Failure> {
    client::run(args, async |client| {
        let answer = client.delete(&["account", "absence"]).await?;
        client.print_line(&answer, out, "You are back. What your deputy has approved stays approved.")
    })
}
