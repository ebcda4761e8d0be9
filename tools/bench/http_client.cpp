#include "tools/bench/http_client.h"

#include <sys/un.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::awaitable;
using boost::system::error_code;
using Protocol = asio::generic::stream_protocol;

// A body that is handed over as it comes, whether in chunks, with a length or until the end of the
// connection.
struct PassedBody {
  using value_type = HttpAnswer*;

  class reader {
   public:
    template <bool is_request, class Fields>
    reader(http::header<is_request, Fields>&, value_type& answer) : answer_(answer) {}

    void init(const boost::optional<uint64_t>&, error_code& error) { error = {}; }

    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      size_t bytes = 0;
      for (auto it = asio::buffer_sequence_begin(buffers); it != asio::buffer_sequence_end(buffers);
           ++it) {
        const asio::const_buffer part = *it;
        answer_->on_body({static_cast<const char*>(part.data()), part.size()});
        bytes += part.size();
      }
      return bytes;
    }

    void finish(error_code& error) { error = {}; }

   private:
    value_type& answer_;  // which the parser is told after it has made this
  };
};
using AnswerParser = http::response_parser<PassedBody>;

struct ClientConnection {
  explicit ClientConnection(asio::io_context& io) : socket(io) {}

  Protocol::socket socket;
  boost::beast::flat_buffer buffer;  // read ahead
};

std::string without_line_ends(std::string text) {
  for (char& c : text) {
    c = c == '\r' || c == '\n' ? ' ' : c;
  }
  return text;
}

std::vector<Protocol::endpoint> endpoints_of(const ServerUrl& url, asio::io_context& io) {
  std::vector<Protocol::endpoint> endpoints;
  if (!url.unix_path.empty()) {
    require(url.unix_path.size() < sizeof(sockaddr_un::sun_path),
            "{}: the path has {} bytes, more than a socket's can", url.shown, url.unix_path.size());
    endpoints.emplace_back(asio::local::stream_protocol::endpoint(url.unix_path));
    return endpoints;
  }
  asio::ip::tcp::resolver resolver(io);
  error_code error;
  const auto found = resolver.resolve(url.host, url.port, error);
  require(!error, "{}: {}", url.shown, without_line_ends(error.message()));
  for (const auto& entry : found) {
    endpoints.emplace_back(entry.endpoint());
  }
  return endpoints;
}

}  // namespace

struct HttpClient::State {
  State(const ServerUrl& url, const std::string& api_key)
      : shown(url.shown), prefix(url.prefix), endpoints(endpoints_of(url, io)) {
    headers = fmt::format("Host: {}\r\nUser-Agent: sparsellm-bench\r\n", url.host_header());
    if (!api_key.empty()) {
      headers += fmt::format("Authorization: Bearer {}\r\n", api_key);
    }
    is_tcp = url.unix_path.empty();
  }

  std::string text_of(const HttpCall& call) const {
    std::string text =
        fmt::format("{} {}{} HTTP/1.1\r\n{}", call.method, prefix, call.path, headers);
    if (!call.body.empty()) {
      text +=
          fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", call.body.size());
    }
    return text.append("\r\n").append(call.body);
  }

  struct Ending {
    std::string error = {};
    bool unanswered = false;  // the connection was closed before anything came
    bool keeps_alive = false;
  };

  // A connection that was idle may have been closed meanwhile; then the call is made again.
  awaitable<void> exchange(std::string text, HttpAnswer& answer) {
    std::string error;
    for (bool again = true; again;) {
      again = false;
      std::unique_ptr<ClientConnection> connection;
      const bool used = !idle.empty();
      if (used) {
        connection = std::move(idle.back());
        idle.pop_back();
      } else {
        connection = std::make_unique<ClientConnection>(io);
        const error_code refused = co_await connect(connection->socket);
        if (refused) {
          error = fmt::format("cannot connect to {}: {}", shown, refused.message());
          break;
        }
      }
      Ending ending = co_await talk(*connection, text, answer);
      again = used && ending.unanswered;
      error = std::move(ending.error);
      if (ending.keeps_alive) {
        idle.push_back(std::move(connection));
      }
    }
    answer.on_end(error);
  }

  // By the first address that works; later connections begin with that one.
  awaitable<error_code> connect(Protocol::socket& socket) {
    error_code error = asio::error::host_not_found;
    for (size_t tried = 0; tried < endpoints.size(); ++tried) {
      const size_t place = (first_endpoint + tried) % endpoints.size();
      error_code ignored;
      socket.close(ignored);
      co_await socket.async_connect(endpoints[place], use(error));
      if (!error) {
        first_endpoint = place;
        if (is_tcp) {
          socket.set_option(asio::ip::tcp::no_delay(true), ignored);
        }
        break;
      }
    }
    co_return error;
  }

  static awaitable<Ending> talk(ClientConnection& connection, const std::string& text,
                                HttpAnswer& answer) {
    Ending ending;
    error_code error;
    AnswerParser parser;
    parser.get().body() = &answer;
    parser.body_limit(boost::none);
    // A server may refuse, and close, before it has read everything: its answer counts.
    error_code write_error;
    co_await asio::async_write(connection.socket, asio::buffer(text), use(write_error));
    co_await http::async_read_header(connection.socket, connection.buffer, parser, use(error));
    if (error) {
      ending.unanswered = error == http::error::end_of_stream ||
                          error == asio::error::connection_reset ||
                          error == asio::error::broken_pipe;
      ending.error = fmt::format("no answer: {}", (write_error ? write_error : error).message());
      co_return ending;
    }
    answer.on_status(static_cast<int>(parser.get().result_int()));
    parser.eager(true);  // all chunks that have come, at once; before the status it would be wrong
    while (!parser.is_done() && !error) {
      co_await http::async_read_some(connection.socket, connection.buffer, parser, use(error));
    }
    if (error) {
      ending.error = fmt::format("the answer breaks off: {}", error.message());
    }
    ending.keeps_alive = !error && !write_error && parser.keep_alive();
    co_return ending;
  }

  static asio::redirect_error_t<asio::use_awaitable_t<>> use(error_code& error) {
    return asio::redirect_error(asio::use_awaitable, error);
  }

  std::string shown;
  std::string prefix;
  std::string headers;
  bool is_tcp = true;
  asio::io_context io{1};
  std::vector<Protocol::endpoint> endpoints;
  size_t first_endpoint = 0;
  std::vector<std::unique_ptr<ClientConnection>> idle;
};

HttpClient::HttpClient(const ServerUrl& url, const std::string& api_key)
    : state_(std::make_unique<State>(url, api_key)) {}

HttpClient::~HttpClient() = default;

void HttpClient::send(HttpCall call, HttpAnswer& answer) {
  // Not at once: answers that fail send further calls from their last one.
  asio::post(state_->io, [state = state_.get(), text = state_->text_of(call), &answer]() mutable {
    asio::co_spawn(state->io, state->exchange(std::move(text), answer),
                   [](const std::exception_ptr& thrown) {
                     if (thrown) {
                       std::rethrow_exception(thrown);
                     }
                   });
  });
}

void HttpClient::after(double seconds, std::function<void()> task) {
  const auto duration = std::chrono::duration<double>(seconds);
  auto timer = std::make_unique<asio::steady_timer>(
      state_->io, std::chrono::duration_cast<asio::steady_timer::duration>(duration));
  asio::steady_timer& waiting = *timer;
  waiting.async_wait([timer = std::move(timer), task = std::move(task)](error_code error) {
    if (!error) {
      task();
    }
  });
}

void HttpClient::run() {
  state_->io.restart();
  state_->io.run();
}

}  // namespace sparsellm
