//! Compresses answers that are worth it: long ones, whole, and never an event stream.
//!
//! actix-web's own middleware compresses everything, and an answer of 200 bytes costs more to compress than to send.

use actix_http::encoding::Encoder;
use actix_web::{
    HttpMessage,
    body::{BodySize, BoxBody, MessageBody as _},
    dev::ServiceResponse,
    http::header::{AcceptEncoding, CONTENT_TYPE, ContentEncoding, Encoding, HeaderValue, VARY},
};

/// Bytes below which an answer goes out as it is: it fits into one packet.
const WORTH_IT: u64 = 1400;

/// The answer as it goes out.
pub fn compress(response: ServiceResponse) -> ServiceResponse<Encoder<BoxBody>> {
    let long = matches!(response.response().body().size(), BodySize::Sized(n) if n >= WORTH_IT);
    let events = response.headers().get(CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"text/event-stream"));
    let worth_it = long && !events;
    let encoding = if worth_it { accepted(response.request()) } else { ContentEncoding::Identity };
    response.map_body(|head, body| {
        if worth_it {
            head.headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        Encoder::response(encoding, head, body)
    })
}

fn accepted(request: &impl HttpMessage) -> ContentEncoding {
    const OURS: [Encoding; 3] = [Encoding::brotli(), Encoding::gzip(), Encoding::identity()];
    match <AcceptEncoding as actix_web::http::header::Header>::parse(request) {
        Ok(accept) if request.headers().contains_key(actix_web::http::header::ACCEPT_ENCODING) => {
            match accept.negotiate(OURS.iter()) {
                Some(Encoding::Known(encoding)) => encoding,
                // Nothing that we have: the answer as it is, which every client can read.
                _ => ContentEncoding::Identity,
            }
        }
        _ => ContentEncoding::Identity,
    }
}

#[cfg(test)]
mod tests {
    use actix_web::{
        App, HttpResponse,
        dev::ServiceRequest,
        http::header,
        middleware::{Next, from_fn},
        test, web,
    };

    use super::*;

    async fn compressed(
        request: ServiceRequest,
        next: Next<BoxBody>,
    ) -> Result<ServiceResponse<Encoder<BoxBody>>, actix_web::Error> {
        next.call(request).await.map(compress)
    }

    async fn encoding_of(accept: Option<&str>, len: usize) -> Option<String> {
        let handler = move || async move { HttpResponse::Ok().content_type("application/json").body("x".repeat(len)) };
        let app = test::init_service(App::new().wrap(from_fn(compressed)).route("/", web::get().to(handler))).await;
        let mut request = test::TestRequest::get().uri("/");
        if let Some(accept) = accept {
            request = request.insert_header((header::ACCEPT_ENCODING, accept));
        }
        let response = test::call_service(&app, request.to_request()).await;
        response.headers().get(header::CONTENT_ENCODING).map(|v| v.to_str().unwrap().to_owned())
    }

    #[actix::test]
    async fn long_answers_are_compressed_for_those_who_ask() {
        assert_eq!(encoding_of(Some("gzip"), 5000).await.as_deref(), Some("gzip"));
        assert_eq!(encoding_of(Some("gzip, br"), 5000).await.as_deref(), Some("br"));
        assert_eq!(encoding_of(None, 5000).await, None);
        assert_eq!(encoding_of(Some("zstd"), 5000).await, None);
        assert_eq!(encoding_of(Some("gzip"), 100).await, None);
    }

    #[actix::test]
    async fn streams_are_left_alone() {
        let handler = || async { crate::framing::sse::answer().body("data: x\n\n".repeat(1000)) };
        let app = test::init_service(App::new().wrap(from_fn(compressed)).route("/", web::get().to(handler))).await;
        let request = test::TestRequest::get().uri("/").insert_header((header::ACCEPT_ENCODING, "gzip")).to_request();
        let response = test::call_service(&app, request).await;
        assert_ne!(response.headers().get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes), Some(&b"gzip"[..]));
        assert!(test::read_body(response).await.starts_with(b"data: x"));
    }
}
