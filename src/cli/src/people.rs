//! `people list|revoke` work directly on the store, even while its gateway runs. `people away|back` ask the gateway.

use jiff::Timestamp;

use super::{
    absence,
    args::storage::{PeopleArgs, PeopleCommand},
    exit::{Exit, Failure},
    location_from_settings,
    output::{Output, Style, cell, print_note, print_table},
    store_settings,
};
use countersign_domain::principal::is_subject_name;
use countersign_store::{
    keys::{ApiKey, Credentials},
    people::StoredPerson,
};

pub fn run(args: &PeopleArgs, out: &mut Output) -> Result<Exit, Failure> {
    let open_store =
        || -> Result<_, Failure> { Ok(location_from_settings(&store_settings(&args.data)?)?.credentials()?) };
    match &args.command {
        PeopleCommand::List { json } => {
            let people = open_store()?.people()?;
            if *json { print_json(&people, out)? } else { print_people(&people, out)? }
        }
        PeopleCommand::Revoke { name } => revoke(&*open_store()?, name, out)?,
        PeopleCommand::Away(args) => return absence::set(args, out),
        PeopleCommand::Back(args) => return absence::end(args, out),
    }
    Ok(Exit::Ok)
}

/// Revokes a person with their sign-ins and keys.
fn revoke(store: &dyn Credentials, name: &str, out: &mut Output) -> Result<(), Failure> {
    if !is_subject_name(name) || !name.contains('#') {
        let message = "name the person as ISSUER#SUBJECT, as `countersign people list` does";
        return Err(Failure::new(Exit::Usage, message.to_owned()));
    }
    let now = Timestamp::now();
    let sign_ins = store.revoke_person(name, now)?;
    let is_theirs = |key: &ApiKey| key.revoked_at.is_none() && key.owner.as_deref() == Some(name);
    let mut keys = 0_usize;
    for key in store.list()?.into_iter().filter(is_theirs) {
        keys += usize::from(store.revoke(&key.id, now)?);
    }
    let effects = format!("browser tabs signed out: {sign_ins}; keys revoked: {keys}");
    Ok(out.write_line(&format!("{name} is revoked ({effects}). Access tokens in this name are refused."))?)
}

fn print_json(people: &[StoredPerson], out: &mut Output) -> Result<(), Failure> {
    let entry = |person: &StoredPerson| {
        serde_json::json!({
            "name": person.name,
            "displayName": person.claims.display_name,
            "role": person.role,
            "groups": person.claims.groups,
            "updatedAt": person.updated_at,
            "revokedAt": person.revoked_at,
        })
    };
    let people = serde_json::json!({ "people": people.iter().map(entry).collect::<Vec<_>>() });
    Ok(out.write_line(&serde_json::to_string_pretty(&people).unwrap_or_default())?)
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
        let display_name = person.claims.display_name.as_deref().unwrap_or_default();
        let role = person.role.map_or("", |role| role.as_str());
        let groups = person.claims.groups.join(", ");
        [&person.name, display_name, role, &groups, &date(person.updated_at), &state]
            .map(|text| cell(Style::Plain, text))
    };
    let headings = ["NAME", "PERSON", "ROLE", "GROUPS", "LAST SEEN", "STATE"];
    Ok(print_table(headings, people.iter().map(row).collect(), None, out)?)
}
