//! Serves the files of the dashboard from the binary: one page, its styles and its modules.
//!
//! The page fetches its data from `/api` with a reviewer's credential, so the files are not secret. The content security policy
//! forbids what the page does not need: inline code, other origins, framing, and turning text into markup.

use std::io;

use actix_web::{
    HttpRequest, HttpResponse,
    http::header::{self, ContentType, Header, HeaderName, HeaderValue, IfNoneMatch},
    web,
};

use crate::embedded_files::EmbeddedFile;

/// Allows only files of the page's own origin. `trusted-types 'none'` makes the browser refuse every assignment of a string to
/// markup.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     font-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
     trusted-types 'none'";

const HEADERS: [(&str, &str); 8] = [
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    // Stored but revalidated each time, so that a new binary shows its dashboard at once.
    ("cache-control", "no-cache"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-frame-options", "DENY"),
    (
        "permissions-policy",
        "camera=(), microphone=(), geolocation=(), payment=(), usb=(), clipboard-read=(), clipboard-write=(self)",
    ),
];

/// Adds `GET /` and `GET /assets/{name}`.
pub fn routes(cfg: &mut web::ServiceConfig) {
    cfg.service(web::resource("/").get(page).head(page))
        .service(web::resource("/assets/{name:.*}").get(asset).head(asset));
}

async fn page(request: HttpRequest) -> io::Result<HttpResponse> {
    serve(&request, "index.html")
}

async fn asset(request: HttpRequest, name: web::Path<String>) -> io::Result<HttpResponse> {
    serve(&request, &name)
}

/// Serves a file by its name: 304 if the browser has it, 404 if it does not exist.
fn serve(request: &HttpRequest, name: &str) -> io::Result<HttpResponse> {
    let found = if is_asset_name(name) { EmbeddedFile::find(&format!("assets/{name}")) } else { None };
    let Some(file) = found else {
        let mut response = add_headers(HttpResponse::NotFound());
        return Ok(response.content_type(ContentType::plaintext()).body("No such file."));
    };
    let tag = file.entity_tag();
    let unchanged = IfNoneMatch::parse(request).is_ok_and(|condition| match condition {
        IfNoneMatch::Any => request.headers().contains_key(header::IF_NONE_MATCH),
        IfNoneMatch::Items(tags) => tags.iter().any(|t| t.weak_eq(&tag)),
    });
    if unchanged {
        return Ok(add_headers(HttpResponse::NotModified()).insert_header(header::ETag(tag)).finish());
    }
    let mut response = add_headers(HttpResponse::Ok());
    response.insert_header(header::ETag(tag)).content_type(media_type(name));
    file.respond(request, response)
}

/// Returns `true` if the name has the form of the gateway's own files. Development builds read from the folder, so no
/// other name may become a path.
fn is_asset_name(name: &str) -> bool {
    name.split('/').all(|part| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
    })
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

fn add_headers(mut response: actix_web::HttpResponseBuilder) -> actix_web::HttpResponseBuilder {
    for (name, value) in HEADERS {
        response.insert_header((HeaderName::from_static(name), HeaderValue::from_static(value)));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use actix_web::{App, body::to_bytes, http::StatusCode, test};
    use countersign_domain::changes::visible::HIDDEN_RANGES;

    use super::*;
    use crate::embedded_files::tests::assets;

    async fn get(path: &str, headers: &[(&str, &str)]) -> actix_web::dev::ServiceResponse {
        let app = test::init_service(App::new().configure(routes)).await;
        let mut request = test::TestRequest::get().uri(path);
        for (name, value) in headers {
            request = request.insert_header((*name, *value));
        }
        test::call_service(&app, request.to_request()).await
    }

    fn header<'a>(response: &'a actix_web::dev::ServiceResponse, name: &str) -> &'a str {
        response.headers().get(name).map_or("", |v| v.to_str().unwrap())
    }

    #[actix::test]
    async fn page_is_served_with_security_headers() {
        let response = get("/", &[]).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(header(&response, "content-type"), "text/html; charset=utf-8");
        assert_eq!(header(&response, "cache-control"), "no-cache");
        assert_eq!(header(&response, "x-content-type-options"), "nosniff");
        assert_eq!(header(&response, "referrer-policy"), "no-referrer");
        assert_eq!(header(&response, "cross-origin-opener-policy"), "same-origin");
        let policy = header(&response, "content-security-policy");
        for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"] {
            assert!(policy.contains(rule), "{rule} is missing in {policy}");
        }
        assert!(!policy.contains("unsafe"));
    }

    #[actix::test]
    async fn unchanged_file_is_answered_with_304() {
        let first = get("/assets/js/load.js", &[]).await;
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(header(&first, "content-type"), "text/javascript; charset=utf-8");
        let tag = header(&first, "etag").to_owned();
        assert!(tag.starts_with("W/\""));
        let again = get("/assets/js/load.js", &[("if-none-match", &format!("\"other\", {tag}"))]).await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(header(&again, "etag"), tag);
        assert!(header(&again, "content-security-policy").contains("default-src 'none'"));
        let other = get("/assets/js/load.js", &[("if-none-match", "W/\"other\"")]).await;
        assert_eq!(other.status(), StatusCode::OK);
    }

    #[actix::test]
    async fn only_get_and_head_are_answered() {
        let app = test::init_service(App::new().configure(routes)).await;
        let head = test::TestRequest::default().method(actix_web::http::Method::HEAD).uri("/").to_request();
        assert_eq!(test::call_service(&app, head).await.status(), StatusCode::OK);
        let post = test::TestRequest::post().uri("/").to_request();
        assert_eq!(test::call_service(&app, post).await.status(), StatusCode::METHOD_NOT_ALLOWED);
    }

    #[actix::test]
    async fn files_outside_the_folder_are_not_served() {
        for path in [
            "/assets/../mod.rs",
            "/assets/..%2fmod.rs",
            "/assets/%2e%2e/mod.rs",
            "/assets//etc/passwd",
            "/assets/js/../../mod.rs",
            "/assets/.hidden",
            "/assets/",
            "/assets/js",
            "/assets/js/none.js",
            "/assets/index.html%00",
        ] {
            assert_eq!(get(path, &[]).await.status(), StatusCode::NOT_FOUND, "{path}");
        }
    }

    /// Every named file exists, and every module and style is in one of them. Nothing is inline or from another origin.
    #[actix::test]
    async fn page_names_every_file() {
        async fn text(path: &str) -> String {
            let response = get(path, &[]).await;
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            String::from_utf8(to_bytes(response.into_body()).await.unwrap().to_vec()).unwrap()
        }
        let page = text("/").await;
        let mut served = String::new();
        for name in page.split('"').filter(|word| word.starts_with("/assets/")) {
            served += &text(name).await;
        }
        for (name, content) in assets() {
            match name.strip_prefix("assets/js/") {
                Some(module) => assert!(served.contains(&format!("'js/{module}'() {{")), "{name} is not loaded"),
                None if name == "assets/css/dashboard.css" || name == "assets/index.html" => {}
                None => assert!(served.contains(&content) || served.contains(&name) || page.contains(&name), "{name}"),
            }
        }
        assert!(!page.contains("http://") && !page.contains("https://"));
        assert!(!page.contains("<style") && !page.contains("style=") && !page.contains("onload="));
        assert_eq!(
            page.matches("<script").count(),
            page.matches("<script src=").count() + page.matches("<script type=\"module\" src=").count()
        );
    }

    #[test]
    fn hidden_characters_match_the_gateway() {
        let code = include_str!("../assets/js/core/text.js");
        let table = code.split("const HIDDEN_RANGES = [").nth(1).unwrap().split("];").next().unwrap();
        let shown: Vec<&str> = table.split_inclusive("],").map(str::trim).filter(|range| !range.is_empty()).collect();
        let range = |range: &RangeInclusive<char>| {
            format!("[{:#x}, {:#x}],", u32::from(*range.start()), u32::from(*range.end()))
        };
        assert_eq!(shown, HIDDEN_RANGES.iter().map(range).collect::<Vec<_>>());
    }

    /// Modules must not create markup, which agents could inject.
    #[test]
    fn no_module_assigns_markup() {
        for (name, code) in assets().iter().filter(|(name, _)| name.ends_with(".js")) {
            for sink in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser"]
            {
                assert!(!code.contains(sink), "{name} uses {sink}");
            }
        }
    }
}
