// One thread per lookup, because getaddrinfo cannot be cancelled.
#include "server/http/name_lookup.h"

#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <system_error>
#include <thread>

namespace vlcache {
namespace {

namespace ip = boost::asio::ip;

ip::address address_of(const sockaddr* from) {
  if (from->sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, from, sizeof v4);
    return ip::address_v4(ntohl(v4.sin_addr.s_addr));
  }
  sockaddr_in6 v6;
  std::memcpy(&v6, from, sizeof v6);
  ip::address_v6::bytes_type bytes;
  std::memcpy(bytes.data(), &v6.sin6_addr, bytes.size());
  return ip::address_v6(bytes, v6.sin6_scope_id);
}

// The number of lookups in progress.
std::shared_ptr<std::atomic<int>> count() {
  static const auto n = std::make_shared<std::atomic<int>>(0);  // threads may outlive static objects
  return n;
}

}  // namespace

NameLookup look_up_now(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  NameLookup found;
  if (const int e = getaddrinfo(host.c_str(), nullptr, &hints, &first); e != 0) {
    found.problem = gai_strerror(e);
    return found;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(first, freeaddrinfo);
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family == AF_INET || entry->ai_family == AF_INET6) {
      found.addresses.push_back(address_of(entry->ai_addr));
    }
  }
  return found;
}

NameLookup look_up(const std::string& host, std::chrono::milliseconds timeout,
                   const std::function<NameLookup(const std::string&)>& ask, const std::function<bool()>& cancelled) {
  const std::shared_ptr<std::atomic<int>> n_asked = count();
  if (n_asked->fetch_add(1) >= kMaxLookups) {
    n_asked->fetch_sub(1);
    return {.addresses = {}, .problem = "too many names are being looked up already"};
  }
  std::promise<NameLookup> promise;
  std::future<NameLookup> answer = promise.get_future();
  try {
    std::thread([n_asked, host, ask, promise = std::move(promise)]() mutable {
      NameLookup found;
      try {
        found = ask(host);
      } catch (const std::exception& e) {
        found.problem = e.what();
      }
      n_asked->fetch_sub(1);
      promise.set_value(std::move(found));
    }).detach();
  } catch (const std::system_error& e) {
    n_asked->fetch_sub(1);
    return {.addresses = {}, .problem = e.what()};
  }
  constexpr std::chrono::milliseconds kOften{50};
  for (const auto deadline = std::chrono::steady_clock::now() + timeout;;) {
    const auto until = std::min(deadline, std::chrono::steady_clock::now() + kOften);
    if (answer.wait_until(until) == std::future_status::ready) return answer.get();
    if (until == deadline || (cancelled && cancelled())) break;
  }
  return {.addresses = {}, .problem = "no answer within " + std::to_string(timeout.count()) + " ms"};
}

}  // namespace vlcache
