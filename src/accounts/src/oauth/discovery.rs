//! Finds the authorization server of an MCP server (RFC 9728, RFC 8414, OpenID Connect Discovery 1.0;
//! 2026-07-28/basic/authorization/authorization-server-discovery).

use serde::{Deserialize, de::DeserializeOwned};
use url::Url;

use super::{
    OAuthError,
    allowed_addresses::AllowedAddresses,
    challenge::Challenge,
    http::{GetError, RequestLimits, get_json},
    read_scopes,
};
use countersign_auth::tokens::{quote, well_known_urls};
use countersign_config::{Authorities, UpstreamOAuth};

/// The maximum number of entries of a list in the metadata that are kept.
const MAX_ENTRIES: usize = 100;

/// The resource of a server (RFC 9728), and its authorization server.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DiscoveredResource {
    /// The value of `resource` in requests (RFC 8707), as the server writes it.
    pub resource: String,
    /// `scopes_supported` of the resource.
    pub resource_scopes: Option<Vec<String>>,
    /// The URL of its metadata, if a challenge named one that is not well-known.
    #[serde(default)]
    pub metadata_url: Option<String>,
    #[serde(rename = "server")]
    pub authorization_server: AuthorizationServer,
}

/// The metadata of an authorization server that the gateway uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AuthorizationServer {
    pub issuer: String,
    pub authorization_endpoint: Option<String>,
    pub token_endpoint: String,
    pub registration_endpoint: Option<String>,
    pub scopes_supported: Option<Vec<String>>,
    pub token_auth_methods: Option<Vec<String>>,
    pub grant_types: Option<Vec<String>>,
    /// `true` if PKCE with S256 is announced.
    pub has_pkce: bool,
    /// `true` if every answer to an authorization request names the issuer (RFC 9207).
    pub names_issuer: bool,
    pub accepts_client_metadata_documents: bool,
    pub dpop_algorithms: Option<Vec<String>>,
    /// The rules for the addresses of this authorization server.
    #[serde(default, rename = "reach")]
    pub allowed_addresses: AllowedAddresses,
}

/// The metadata of a protected resource (RFC 9728, section 2).
#[derive(Deserialize)]
struct ResourceDocument {
    resource: String,
    authorization_servers: Option<Vec<String>>,
    scopes_supported: Option<Vec<String>>,
}

/// The metadata of an authorization server (RFC 8414, section 2).
#[derive(Deserialize)]
struct AuthorizationServerDocument {
    issuer: String,
    authorization_endpoint: Option<String>,
    token_endpoint: Option<String>,
    registration_endpoint: Option<String>,
    scopes_supported: Option<Vec<String>>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    grant_types_supported: Option<Vec<String>>,
    code_challenge_methods_supported: Option<Vec<String>>,
    authorization_response_iss_parameter_supported: Option<bool>,
    client_id_metadata_document_supported: Option<bool>,
    dpop_signing_alg_values_supported: Option<Vec<String>>,
}

/// Finds the authorization server of the MCP server at `url`. The certificate authorities `trusted` are accepted in
/// addition to the public ones, at the server and at its authorization server.
///
/// # Errors
/// [`OAuthError::Unavailable`] if a metadata document cannot be read now; [`OAuthError::Unusable`] if one is missing or
/// invalid, or names an address that is not allowed.
pub async fn discover(
    url: &Url,
    challenge: Option<&Challenge>,
    config: &UpstreamOAuth,
    trusted: Option<&Authorities>,
) -> Result<DiscoveredResource, OAuthError> {
    let allowed_addresses = AllowedAddresses::new(url, config.issuer.as_deref());
    let limits = RequestLimits { allowed_addresses: &allowed_addresses, trusted };
    let named_url = challenge.and_then(|challenge| challenge.resource_metadata.clone());
    let urls = named_url.as_ref().map_or_else(|| resource_metadata_urls(url), |named_url| vec![named_url.clone()]);
    let found = find_document::<ResourceDocument>(&urls, limits).await?;
    let (resource, resource_scopes, issuer) = match found {
        DocumentLookup::Found { url: document_url, document } => {
            if !covers_server(&document.resource, url) {
                let resource = quote(&document.resource);
                let document_url = quote(&document_url);
                return Err(OAuthError::Unusable(format!("{document_url}: its resource {resource} is not the server")));
            }
            let issuer = choose_issuer(&document.authorization_servers.unwrap_or_default(), config)?;
            let scopes = document.scopes_supported.map(|scopes| read_scopes(scopes.iter().map(String::as_str)));
            (document.resource, scopes, issuer)
        }
        DocumentLookup::Missing(_) if named_url.is_none() && config.issuer.is_some() => {
            (canonical_resource(url), None, config.issuer.clone())
        }
        DocumentLookup::Missing(_) if named_url.is_none() && config.legacy => (canonical_resource(url), None, None),
        DocumentLookup::Missing(reason) => {
            return Err(OAuthError::Unusable(format!("the server names no authorization server: {reason}")));
        }
    };
    let authorization_server = match issuer {
        Some(issuer) => read_authorization_server(&issuer, limits).await?,
        None => read_legacy_server(url, limits).await?,
    };
    let metadata_url = named_url.filter(|named_url| !resource_metadata_urls(url).contains(named_url));
    Ok(DiscoveredResource { resource, resource_scopes, metadata_url, authorization_server })
}

/// Reads the metadata of an authorization server from the first of its well-known URLs that has it.
///
/// # Errors
/// As [`discover`].
pub async fn read_authorization_server(
    issuer: &str,
    limits: RequestLimits<'_>,
) -> Result<AuthorizationServer, OAuthError> {
    limits.allowed_addresses.check(issuer)?;
    match find_document(&well_known_urls(issuer), limits).await? {
        DocumentLookup::Found { url, document } => {
            AuthorizationServer::read(&url, document, &[issuer], limits.allowed_addresses)
        }
        DocumentLookup::Missing(reason) => {
            Err(OAuthError::Unusable(format!("the issuer {} has no metadata: {reason}", quote(issuer))))
        }
    }
}

/// Reads the metadata at the server's own address, or returns the default endpoints (2025-03-26/basic/authorization).
async fn read_legacy_server(url: &Url, limits: RequestLimits<'_>) -> Result<AuthorizationServer, OAuthError> {
    let issuer = url.origin().ascii_serialization();
    let urls = [format!("{issuer}/.well-known/oauth-authorization-server")];
    if let DocumentLookup::Found { url, document } = find_document(&urls, limits).await? {
        return AuthorizationServer::read(&url, document, &[&issuer, &format!("{issuer}/")], limits.allowed_addresses);
    }
    Ok(AuthorizationServer {
        authorization_endpoint: Some(format!("{issuer}/authorize")),
        token_endpoint: format!("{issuer}/token"),
        registration_endpoint: Some(format!("{issuer}/register")),
        issuer,
        allowed_addresses: limits.allowed_addresses.clone(),
        ..AuthorizationServer::default()
    })
}

impl AuthorizationServer {
    /// Reads the document at `url`, whose issuer must be one of `issuers`.
    fn read(
        url: &str,
        document: AuthorizationServerDocument,
        issuers: &[&str],
        allowed_addresses: &AllowedAddresses,
    ) -> Result<Self, OAuthError> {
        let unusable = |error: String| OAuthError::Unusable(format!("{}: {error}", quote(url)));
        // RFC 8414, section 3.3. Otherwise an issuer could speak for another one.
        if !issuers.contains(&document.issuer.as_str()) {
            return Err(unusable(format!("the issuer in the document is {}", quote(&document.issuer))));
        }
        let token_endpoint =
            document.token_endpoint.ok_or_else(|| unusable("there is no token endpoint".to_owned()))?;
        let optional_endpoints = [&document.authorization_endpoint, &document.registration_endpoint];
        for endpoint in optional_endpoints.into_iter().flatten().chain([&token_endpoint]) {
            allowed_addresses.check(endpoint)?;
        }
        let truncate = |list: Option<Vec<String>>| {
            list.map(|mut list| {
                list.truncate(MAX_ENTRIES);
                list
            })
        };
        let has_pkce =
            document.code_challenge_methods_supported.is_some_and(|methods| methods.iter().any(|m| m == "S256"));
        Ok(Self {
            issuer: document.issuer,
            authorization_endpoint: document.authorization_endpoint,
            token_endpoint,
            registration_endpoint: document.registration_endpoint,
            scopes_supported: document.scopes_supported.map(|scopes| read_scopes(scopes.iter().map(String::as_str))),
            token_auth_methods: truncate(document.token_endpoint_auth_methods_supported),
            grant_types: truncate(document.grant_types_supported),
            has_pkce,
            names_issuer: document.authorization_response_iss_parameter_supported == Some(true),
            accepts_client_metadata_documents: document.client_id_metadata_document_supported == Some(true),
            dpop_algorithms: truncate(document.dpop_signing_alg_values_supported),
            allowed_addresses: allowed_addresses.clone(),
        })
    }
}

/// The outcome of a search for a document at several URLs.
enum DocumentLookup<T> {
    Found {
        url: String,
        document: T,
    },
    /// No URL has a document. The text says why, for the last URL that has other JSON or else for the last one.
    Missing(String),
}

/// Returns the document at the first URL that has one.
///
/// # Errors
/// [`OAuthError::Unavailable`] if a server does not answer, or answers that it is unavailable.
async fn find_document<T: DeserializeOwned>(
    urls: &[String],
    limits: RequestLimits<'_>,
) -> Result<DocumentLookup<T>, OAuthError> {
    let (mut failure, mut is_unavailable) = ("there is no well-known URL".to_owned(), false);
    let mut malformed = None;
    for url in urls {
        match get_json(url, limits).await {
            // At a URL without a document, servers answer with any status, with a page, or with other JSON.
            Ok(document) => match T::deserialize(document) {
                Ok(document) => return Ok(DocumentLookup::Found { url: url.clone(), document }),
                Err(error) => malformed = Some(format!("{}: {}", quote(url), quote(&error.to_string()))),
            },
            Err(GetError::Failed(error)) => return Err(error),
            Err(GetError::NoDocument { reason, is_transient }) => {
                failure = format!("{}: {reason}", quote(url));
                is_unavailable |= is_transient;
            }
        }
    }
    if is_unavailable {
        return Err(OAuthError::Unavailable { reason: failure, is_unprocessed: false });
    }
    Ok(DocumentLookup::Missing(malformed.unwrap_or(failure)))
}

/// Returns the well-known URLs of a server's metadata, for a challenge that names no URL (RFC 9728, section 3.1).
fn resource_metadata_urls(url: &Url) -> Vec<String> {
    let root = format!("{}/.well-known/oauth-protected-resource", url.origin().ascii_serialization());
    let path = url.path().trim_end_matches('/');
    if path.is_empty() { vec![root] } else { vec![format!("{root}{path}"), root] }
}

/// Returns the resource identifier of a server that names none (2026-07-28/basic/authorization, "Canonical Server
/// URI").
fn canonical_resource(url: &Url) -> String {
    let path = url.path().trim_end_matches('/');
    let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}{path}{query}", url.origin().ascii_serialization())
}

/// Returns `true` if a token for this resource is valid at the server: the resource is its URL, a parent path or its
/// origin.
fn covers_server(resource: &str, url: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else { return false };
    let (path, server_path) = (resource.path().trim_end_matches('/'), url.path().trim_end_matches('/'));
    let is_within = server_path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let has_only_path =
        resource.fragment().is_none() && resource.username().is_empty() && resource.password().is_none();
    let has_same_query = resource.query().is_none() || resource.query() == url.query();
    resource.origin() == url.origin() && is_within && has_only_path && has_same_query
}

/// Chooses the configured issuer among those of a resource, or else the first one. Returns `None` if the resource has
/// none and `legacy` allows that.
fn choose_issuer(issuers: &[String], config: &UpstreamOAuth) -> Result<Option<String>, OAuthError> {
    let is_same = |a: &str, b: &str| a.trim_end_matches('/') == b.trim_end_matches('/');
    match (&config.issuer, issuers.first()) {
        (Some(wanted), Some(_)) => {
            let configured_issuer = issuers.iter().find(|issuer| is_same(issuer, wanted)).cloned();
            let configured_issuer = configured_issuer.ok_or_else(|| {
                OAuthError::Unusable(format!("the server does not use the configured issuer {}", quote(wanted)))
            });
            configured_issuer.map(Some)
        }
        (Some(wanted), None) => Ok(Some(wanted.clone())),
        (None, Some(first)) => Ok(Some(first.clone())),
        (None, None) if config.legacy => Ok(None),
        (None, None) => Err(OAuthError::unusable("the server's metadata names no authorization server")),
    }
}
