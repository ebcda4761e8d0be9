#include "kernels/base/error.h"
#include "tools/bench/http_client.h"

namespace sparsellm {

struct HttpClient::State {};

HttpClient::HttpClient(const ServerUrl& url, const std::string&) {
  fail("--url {}: this program was built without HTTP, which needs Boost's headers", url.shown);
}
HttpClient::~HttpClient() = default;
void HttpClient::send(HttpCall, HttpAnswer&) {}
void HttpClient::after(double, std::function<void()>) {}
void HttpClient::run() {}

}  // namespace sparsellm
