//! Compares the identity providers and token issuers of two configurations, and holds back changes that would let in more
//! people or agents.

use std::collections::BTreeMap;

use super::pending::PolicyChanges;
use countersign_config::{Authorities, OidcConfig, TokenIssuer};
use countersign_domain::principal::Role;

/// Returns the issuers of access tokens that may take effect at once. A new issuer, and one that accepts more tokens than
/// before, waits for consent.
pub(super) fn hold_back_issuers(
    old: &[TokenIssuer],
    new: &[TokenIssuer],
    changes: &mut PolicyChanges,
) -> Vec<TokenIssuer> {
    let mut effective = Vec::new();
    for issuer in new {
        let before = old.iter().find(|before| before.issuer == issuer.issuer);
        if before.is_some_and(|before| !is_looser_issuer(before, issuer)) {
            effective.push(issuer.clone());
            continue;
        }
        let from = before.map_or_else(|| "no such issuer".to_owned(), TokenIssuer::show);
        changes.loosen("auth.tokens", from, issuer.show());
        effective.extend(before.cloned());
    }
    for removed in old.iter().filter(|before| !new.iter().any(|issuer| issuer.issuer == before.issuer)) {
        changes.tighten(format!("auth.tokens: {} was removed", removed.issuer));
    }
    effective
}

/// Returns the identity provider that may take effect at once. A new one, and one that lets in more people or gives other
/// roles, waits for consent.
pub(super) fn hold_back_identity_provider(
    old: Option<&OidcConfig>,
    new: Option<&OidcConfig>,
    changes: &mut PolicyChanges,
) -> Option<OidcConfig> {
    match (old, new) {
        (Some(_), None) => changes.tighten("auth.oidc: people no longer sign in with an identity provider"),
        (_, Some(now)) if old.is_none_or(|before| is_looser_identity_provider(before, now)) => {
            changes.loosen("auth.oidc", old.map_or_else(|| "null".to_owned(), OidcConfig::show), now.show());
            return old.cloned();
        }
        _ => {}
    }
    new.cloned()
}

/// Returns `true` if `new` lets in people whom `old` refuses, or gives them another role.
fn is_looser_identity_provider(old: &OidcConfig, new: &OidcConfig) -> bool {
    (&new.issuer, &new.client_id, &new.groups_claim) != (&old.issuer, &old.client_id, &old.groups_claim)
        || gives_other_role(&old.roles, &new.roles)
        || old.require.iter().any(|(claim, value)| new.require.get(claim) != Some(value))
        || trusts_more(old.authorities.as_ref(), new.authorities.as_ref())
}

/// Returns `true` if `new` accepts a token that `old` refuses, or gives it another role.
fn is_looser_issuer(old: &TokenIssuer, new: &TokenIssuer) -> bool {
    let TokenIssuer { issuer: _, audiences, roles, groups_claim, introspection, authorities } = new;
    let accepts_more = |audience| !old.audiences.contains(audience);
    // An empty list of audiences stands for this gateway's own address, which the other list need not contain.
    audiences.is_empty() != old.audiences.is_empty()
        || audiences.iter().any(accepts_more)
        // Without roles by group, the scopes of a token decide.
        || roles.is_empty() != old.roles.is_empty()
        || gives_other_role(&old.roles, roles)
        || *groups_claim != old.groups_claim
        || (introspection.is_some() && old.introspection.is_none())
        || trusts_more(old.authorities.as_ref(), authorities.as_ref())
}

/// Returns `true` if `new` has a certificate that `old` does not have.
fn trusts_more(old: Option<&Authorities>, new: Option<&Authorities>) -> bool {
    let is_known = |certificate| old.is_some_and(|old| old.certificates.contains(certificate));
    new.is_some_and(|new| !new.certificates.iter().all(is_known))
}

/// Returns `true` if `new` gives a group a role that `old` does not give it.
fn gives_other_role(old: &BTreeMap<String, Role>, new: &BTreeMap<String, Role>) -> bool {
    new.iter().any(|(group, role)| old.get(group) != Some(role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looser_identity_provider_waits_stricter_one_does_not() {
        let with = |change: &dyn Fn(&mut OidcConfig)| {
            let mut oidc = OidcConfig::new("https://id.example", "gw");
            oidc.roles = [("platform".to_owned(), Role::Reviewer)].into();
            oidc.require = [("hd".to_owned(), "example.com".to_owned())].into();
            change(&mut oidc);
            oidc
        };
        let hold_back = |old: Option<&OidcConfig>, new: Option<&OidcConfig>| {
            let mut changes = PolicyChanges::default();
            let effective = hold_back_identity_provider(old, new, &mut changes);
            (effective, changes.loosened.len(), changes.tightened.len())
        };
        let old = with(&|_| {});
        let authorities = || Authorities { file: "ca.pem".into(), certificates: vec![b"certificate".to_vec().into()] };
        let looser: [&dyn Fn(&mut OidcConfig); 7] = [
            &|c| c.issuer = "https://other.example".into(),
            &|c| c.client_id = "other".into(),
            &|c| c.groups_claim = "other".into(),
            &|c| c.roles.extend([("security".to_owned(), Role::Admin)]),
            &|c| c.roles.extend([("platform".to_owned(), Role::Viewer)]),
            &|c| c.require.clear(),
            &|c| c.authorities = Some(authorities()),
        ];
        for change in looser {
            assert_eq!(hold_back(Some(&old), Some(&with(change))), (Some(old.clone()), 1, 0));
        }
        assert_eq!(hold_back(None, Some(&old)), (None, 1, 0));
        let stricter: [&dyn Fn(&mut OidcConfig); 3] =
            [&|c| c.roles.clear(), &|c| c.require.extend([("email_verified".to_owned(), "true".to_owned())]), &|c| {
                c.scopes = vec!["openid".into()]
            }];
        for change in stricter {
            let new = with(change);
            assert_eq!(hold_back(Some(&old), Some(&new)), (Some(new), 0, 0));
        }
        assert_eq!(hold_back(Some(&old), None), (None, 0, 1));
    }
}
