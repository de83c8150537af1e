//! Sets, shows and ends the caller's absence, during which their deputy may decide for their groups.
//!
//! People set and end only their own absence. It gives nobody a role, and the audit trail records it.

use actix_web::{HttpResponse, web};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Caller, Problem, SignInData,
    body::{Body, Submission},
    json_response,
    keys::{store_problem, use_store},
};
use countersign_domain::{
    changes::{
        Absence, AbsentPerson, MAX_ABSENCE,
        person::{Person, names_match},
    },
    policy::{Deputyship, Reviewers},
    principal::Principal,
};
use countersign_protocol::ErrorKind;
use countersign_store::{keys::Credentials, unread_result_error};

/// An absence of the caller.
#[derive(Clone, Serialize, ToSchema)]
pub(super) struct OwnAbsence {
    /// The name of the deputy.
    deputy: String,
    since: Timestamp,
    until: Timestamp,
}

/// An absent person whose deputy the caller is.
#[derive(Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AbsentColleague {
    name: String,
    /// The name for people, if an identity provider gave one.
    #[serde(skip_serializing_if = "Option::is_none")]
    display_name: Option<String>,
    /// The groups for which the caller may decide until then, except on changes that the absent person proposed.
    groups: Vec<String>,
    until: Timestamp,
}

/// The absence of the caller, and those of others in which the caller is the deputy.
#[derive(Default)]
pub(super) struct Absences {
    pub own: Option<OwnAbsence>,
    pub deputy_for: Vec<AbsentColleague>,
}

/// Returns the absences that concern the caller, or none if the store cannot be read.
pub(super) async fn read_absences(caller: &Caller, data: &SignInData) -> Absences {
    if !caller.principal.role.may_decide() {
        return Absences::default();
    }
    let (principal, reviewers) = (caller.principal.clone(), data.reviewers.clone());
    let store_read = use_store(data, move |store| {
        let now = Timestamp::now();
        let own_absence = find_own(store, &principal, now)?;
        let deputyships = reviewers.deputyships(&principal, now)?;
        Ok(Absences { own: own_absence, deputy_for: deputyships.into_iter().map(describe).collect() })
    });
    store_read.await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the absences cannot be read");
        Absences::default()
    })
}

/// Describes an absence to the deputy.
fn describe(Deputyship { absence, groups }: Deputyship) -> AbsentColleague {
    let Absence { person, until, .. } = absence;
    AbsentColleague { name: person.person_name().to_owned(), display_name: person.display_name, groups, until }
}

/// Returns the caller's absence, unless it is over.
fn find_own(store: &dyn Credentials, principal: &Principal, now: Timestamp) -> Result<Option<OwnAbsence>, Problem> {
    let absences = store.absences().map_err(store_problem)?;
    let is_own = |absence: &Absence| {
        absence.is_current(now) && names_match(absence.person.person_name(), principal.person_name())
    };
    let own_absence = absences.into_iter().find(is_own);
    Ok(own_absence.map(|Absence { deputy, since, until, .. }| OwnAbsence { deputy, since, until }))
}

/// A person whom the caller can name as their deputy.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct PossibleDeputy {
    name: String,
    /// The name for people, if an identity provider gave one.
    #[serde(skip_serializing_if = "Option::is_none")]
    display_name: Option<String>,
}

/// The caller's absence, and the people who can be their deputy.
#[derive(Serialize, ToSchema)]
struct AbsenceState {
    #[serde(skip_serializing_if = "Option::is_none")]
    absence: Option<OwnAbsence>,
    deputies: Vec<PossibleDeputy>,
    /// The groups for which a deputy may decide: those of `policy.groups` that list the caller by name.
    groups: Vec<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AbsenceRequest {
    /// The end of the absence, at most 60 days from now.
    until: Timestamp,
    /// A person who may decide on changes: the owner of a key, the name of a key, or `ISSUER#SUBJECT`.
    deputy: String,
}

impl Body for AbsenceRequest {}

/// Returns the caller's absence, and the people who can be their deputy.
#[utoipa::path(get, path = "/api/account/absence", operation_id = "getAbsence", responses(
    (status = 200, description = "The absence, if there is one", body = AbsenceState)))]
pub async fn get(caller: Caller, data: web::Data<SignInData>) -> Result<HttpResponse, Problem> {
    let (principal, reviewers) = (caller.require_reviewer()?.clone(), data.reviewers.clone());
    let state = use_store(&data, move |store| read_state(store, &reviewers, &principal)).await?;
    Ok(json_response(&state))
}

/// Sets the caller's absence, in place of an earlier one.
///
/// Until then, the deputy counts as a member of the groups of `policy.groups` that list the caller by name. The deputy has one vote,
/// in place of the caller's, and none on changes that either of them proposed. The response is 422 if the end is not within the next
/// 60 days, or if the deputy is the caller or may not decide on changes.
#[utoipa::path(put, path = "/api/account/absence", operation_id = "setAbsence", request_body = AbsenceRequest,
    responses((status = 200, description = "The absence", body = AbsenceState)))]
pub async fn set(
    Submission { principal, body, .. }: Submission<AbsenceRequest>,
    data: web::Data<SignInData>,
) -> Result<HttpResponse, Problem> {
    let reviewers = data.reviewers.clone();
    let state = use_store(&data, move |store| {
        let since = Timestamp::now();
        if body.until <= since || body.until.duration_since(since) > MAX_ABSENCE {
            return Err(Problem::invalid("an absence ends within the next 60 days"));
        }
        let deputy = find_deputy(store, &principal, &body.deputy)?;
        let person = AbsentPerson::from_principal(&principal);
        let absence = Absence { person, deputy, since, until: body.until };
        store.put_absence(&absence).map_err(store_problem)?;
        tracing::info!(person = principal.name, deputy = absence.deputy, until = %absence.until, "a person is away");
        read_state(store, &reviewers, &principal).map_err(|_| unread_result_error().into())
    })
    .await?;
    Ok(json_response(&state))
}

/// Ends the caller's absence.
///
/// Approvals that the deputy has given stay valid. The response is 404 if the caller is not away.
#[utoipa::path(delete, path = "/api/account/absence", operation_id = "endAbsence", responses(
    (status = 200, description = "The absence has ended", body = AbsenceState), (status = 404)))]
pub async fn end(caller: Caller, data: web::Data<SignInData>) -> Result<HttpResponse, Problem> {
    let (principal, reviewers) = (caller.principal.clone(), data.reviewers.clone());
    let state = use_store(&data, move |store| {
        if !store.end_absence(principal.person_name(), &principal.name).map_err(store_problem)? {
            return Err(Problem::new(ErrorKind::NotFound, "you are not away"));
        }
        tracing::info!(person = principal.name, "a person is back");
        read_state(store, &reviewers, &principal).map_err(|_| unread_result_error().into())
    })
    .await?;
    Ok(json_response(&state))
}

fn read_state(store: &dyn Credentials, reviewers: &Reviewers, principal: &Principal) -> Result<AbsenceState, Problem> {
    let absence = find_own(store, principal, Timestamp::now())?;
    let mut deputies: Vec<PossibleDeputy> = Vec::new();
    for colleague in deciding_colleagues(store, principal)? {
        let name = colleague.person_name();
        let display_name = colleague.display_name().map(str::to_owned);
        match deputies.iter_mut().find(|known| names_match(&known.name, name)) {
            Some(known) => known.display_name = known.display_name.take().or(display_name),
            None => deputies.push(PossibleDeputy { name: name.to_owned(), display_name }),
        }
    }
    deputies.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(AbsenceState { absence, deputies, groups: reviewers.listed_groups_of(principal) })
}

/// Returns the principals of all other people who may decide on changes: one for each key and each person of the identity
/// provider.
fn deciding_colleagues(store: &dyn Credentials, principal: &Principal) -> Result<Vec<Principal>, Problem> {
    let keys = store.list().map_err(store_problem)?;
    let people = store.people().map_err(store_problem)?;
    let key_holders = keys.into_iter().filter(|key| key.revoked_at.is_none()).map(|key| Principal {
        key_id: Some(key.id),
        owner: key.owner,
        ..Principal::new(key.name, key.role)
    });
    let principals = key_holders.chain(people.iter().filter_map(|person| person.principal()));
    let own_person = Person::from_principal(principal);
    let is_colleague =
        |other: &Principal| other.role.may_decide() && !Person::from_principal(other).may_be_same_as(own_person);
    Ok(principals.filter(is_colleague).collect())
}

/// Returns the owner of the keys with this name or owner, or the person of the identity provider with this name.
///
/// # Errors
/// `VALIDATION_FAILED` if it is the caller, nobody who may decide, or not unique.
fn find_deputy(store: &dyn Credentials, principal: &Principal, name: &str) -> Result<String, Problem> {
    if Person::from_principal(principal).may_be_same_as(Person::from_name(name)) {
        return Err(Problem::invalid("nobody can be their own deputy"));
    }
    let colleagues = deciding_colleagues(store, principal)?;
    let mut named_colleagues = colleagues.iter().filter(|colleague| Person::from_principal(colleague).is_named(name));
    let Some(first) = named_colleagues.next() else {
        return Err(Problem::invalid(
            "the deputy must be somebody else who has a key that may decide on changes, or who has signed in",
        ));
    };
    if named_colleagues.any(|other| !names_match(other.person_name(), first.person_name())) {
        return Err(Problem::invalid("several people have keys with this name; give the owner of the key"));
    }
    Ok(first.person_name().to_owned())
}
