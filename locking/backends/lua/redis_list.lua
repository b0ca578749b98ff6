-- Returns {owner, token, count, ms left, waiters} of the holder, in a list; an empty list if there is
-- none. redis_shared_list.lua does the same for shared locks.
--
-- KEYS  1 lock, 2 queue (see redis_queue.lua)

local owner, token, count = unpack(redis.call('HMGET', KEYS[1], 'owner', 'token', 'count'))
local left = redis.call('PTTL', KEYS[1])
if not owner or left < 0 then
  return {}
end
return {{owner, token, tonumber(count), left, math.max(0, redis.call('LLEN', KEYS[2]) - 1)}}
