// CacheRoutes: the routes below /v1/cache/, where operators inspect and manage the caches.
#pragma once

#include "api/messages/named_images.h"
#include "server/operations/exchange.h"
#include "server/operations/inference.h"
#include "server/protocol/response_store.h"

namespace vlcache {

class CacheRoutes {
 public:
  // Both must outlive this object.
  CacheRoutes(Inference& inference, NamedImages& named_images, ResponseStore& responses)
      : inference_(inference), named_images_(named_images), responses_(responses) {}

  // What the caches have done and hold; for all callers.
  HttpResponse stats() const;
  // The images in memory: {"data": [{id, kv_bytes, embeddings_bytes, uses, pinned}]}. The inference thread
  // answers this route and those below between two steps.
  void entries(const ExchangePtr& exchange);
  // {"id": HASH, "pinned": true}: the image stays in memory.
  void pin(const HttpRequest& request, const ExchangePtr& exchange);
  // {"id": HASH}: the image is removed from memory and every tier.
  void drop(const HttpRequest& request, const ExchangePtr& exchange);
  // Frees everything that memory caches beyond running requests.
  void reset(const ExchangePtr& exchange);

 private:
  Inference& inference_;
  NamedImages& named_images_;
  ResponseStore& responses_;
};

}  // namespace vlcache
