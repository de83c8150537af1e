//! `keys create|list|revoke|sign-out`: works directly on the data directory, also while its gateway runs.

use std::io;

use jiff::Timestamp;

use super::{
    args::{DataCommands, storage::KeysCommand},
    exit::{Exit, Failure},
    location_from_settings,
    output::{Output, Style, cell, print_note, print_table},
    store_settings,
};
use countersign_auth::confusable_names::check_is_distinguishable;
use countersign_config::{
    Environment, Flags,
    load::{StoreSettings, group_members, issuers},
};
use countersign_domain::principal::Role;
use countersign_store::keys::{ApiKey, Credentials};

pub fn run(args: &DataCommands<KeysCommand>, out: &mut Output) -> Result<Exit, Failure> {
    let settings = store_settings(&args.data)?;
    let location = location_from_settings(&settings)?;
    match &args.command {
        KeysCommand::Create { role, name, owner, subject } => {
            let new = countersign_auth::keys::create(name, *role, Timestamp::now())?;
            let new = match subject.as_deref() {
                Some([issuer, subject]) => {
                    check_issuer(&settings, issuer)?;
                    new.owned_by_subject(issuer, subject)?
                }
                _ => new.owned_by(owner.as_deref())?,
            };
            let keys = location.credentials()?;
            let known_names = load_known_names(&settings, &*keys)?;
            for text in std::iter::once(name).chain(owner) {
                check_is_distinguishable(text, known_names.iter().map(String::as_str))?;
            }
            keys.insert(&new.key, &new.hash)?;
            let printed = out.write_line(&new.secret).and_then(|()| out.finish()).and_then(|()| out.ensure_open());
            if let Err(error) = printed {
                return Err(revoke_unprinted(&*keys, &new.key.id, error));
            }
            let variable = if *role == Role::Agent { "COUNTERSIGN_AGENT_KEY" } else { "COUNTERSIGN_KEY" };
            let id = &new.key.id;
            print_note(&format!("Key {id} of {name}, for {variable}. It is not shown again; only its hash is kept."));
            Ok(Exit::Ok)
        }
        KeysCommand::List { json } => {
            let keys = location.credentials()?.list()?;
            if *json {
                print_json(&keys, out)?
            } else {
                print_keys(&keys, out)?
            }
            Ok(Exit::Ok)
        }
        KeysCommand::SignOut => {
            let keys = location.credentials()?;
            let sign_in_ids: Vec<_> = keys.sign_ins()?.into_iter().map(|sign_in| sign_in.id).collect();
            keys.forget_sign_ins(&sign_in_ids)?;
            out.write_line(&format!("Browser tabs signed out: {}.", sign_in_ids.len()))?;
            Ok(Exit::Ok)
        }
        KeysCommand::Revoke { id } => {
            let keys = location.credentials()?;
            if keys.revoke(id, Timestamp::now())? {
                out.write_line(&format!("{id} is revoked."))?;
                return Ok(Exit::Ok);
            }
            if keys.list()?.into_iter().any(|key| key.id == *id) {
                return Err(Failure::new(Exit::Conflict, format!("{id} was revoked already")));
            }
            let message = format!("there is no key {id:?}; `countersign keys list` shows their ids");
            Err(Failure::new(Exit::NotFound, message))
        }
    }
}

/// Revokes a key whose secret nobody has seen, and returns the failure to report.
fn revoke_unprinted(keys: &dyn Credentials, id: &str, error: io::Error) -> Failure {
    let outcome = match keys.revoke(id, Timestamp::now()) {
        Ok(_) => format!("so the new key {id} was revoked"),
        Err(reason) => {
            format!("and the new key {id} could not be revoked ({reason}); use `countersign keys revoke {id}`")
        }
    };
    Failure::new(Exit::Failed, format!("{}, {outcome}", Failure::from(error).message))
}

/// Refuses an issuer that the configuration does not name. If it is spelled differently, a key could approve what its owner's
/// agent proposed, and a revocation would revoke nobody. A configuration without issuers accepts every issuer.
pub(super) fn check_issuer(settings: &StoreSettings, issuer: &str) -> Result<(), Failure> {
    let flags = Flags { config: settings.file.clone(), ..Flags::default() };
    let configured_issuers = issuers(&flags, &Environment::from_process())?;
    if configured_issuers.is_empty() || configured_issuers.iter().any(|configured| configured == issuer) {
        return Ok(());
    }
    let message =
        format!("the configuration names no issuer {issuer:?}; write it as there: {}", configured_issuers.join(", "));
    Err(Failure::new(Exit::Usage, message))
}

/// Returns the names and owners of all keys and the members of all groups. Revoked keys count, since the audit trail
/// names them.
fn load_known_names(settings: &StoreSettings, keys: &dyn Credentials) -> Result<Vec<String>, Failure> {
    let flags = Flags { config: settings.file.clone(), ..Flags::default() };
    let members = group_members(&flags, &Environment::from_process())?;
    let names_of = |key: ApiKey| std::iter::once(key.name).chain(key.owner);
    Ok(keys.list()?.into_iter().flat_map(names_of).chain(members).collect())
}

fn print_json(keys: &[ApiKey], out: &mut Output) -> Result<(), Failure> {
    let entry = |key: &ApiKey| {
        serde_json::json!({
            "id": key.id,
            "name": key.name,
            "role": key.role,
            "owner": key.owner.as_deref().unwrap_or(&key.name),
            "createdBy": key.created_by.first(),
            "createdAt": key.created_at,
            "lastUsedAt": key.last_used_at,
            "revokedAt": key.revoked_at,
        })
    };
    let keys = serde_json::json!({ "keys": keys.iter().map(entry).collect::<Vec<_>>() });
    Ok(out.write_json(&serde_json::to_string_pretty(&keys).unwrap_or_default())?)
}

fn print_keys(keys: &[ApiKey], out: &mut Output) -> Result<(), Failure> {
    if keys.is_empty() {
        print_note("No keys yet. `countersign keys create --role reviewer --name NAME` makes one.");
        return Ok(());
    }
    let date = |at: Timestamp| at.strftime("%Y-%m-%d %H:%M").to_string();
    let row = |key: &ApiKey| {
        let state = key.revoked_at.map_or("active".to_owned(), |at| format!("revoked {}", date(at)));
        let used = key.last_used_at.map_or("never".to_owned(), date);
        let owner = key.owner.as_deref().unwrap_or(&key.name);
        let creator = key.created_by.first().map_or("-", String::as_str);
        // Names are validated when keys are created, but the database may have been edited, so the cells escape them.
        [&key.id, &key.name, owner, key.role.as_str(), &date(key.created_at), creator, &used, &state]
            .map(|text| cell(Style::Plain, text))
    };
    let headings = ["ID", "NAME", "OWNER", "ROLE", "CREATED", "CREATED BY", "LAST USED", "STATE"];
    Ok(print_table(headings, keys.iter().map(row).collect(), None, out)?)
}
