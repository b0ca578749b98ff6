-- Shared by the scripts of semaphores and read-write locks, which are appended to it. It is appended
-- to redis_queue.lua, whose names it uses; the queue has no entry of a holder.
--
-- KEYS  1 lock     hash: by owner its grant "token ttl count"; 'writer', the owner of an exclusive
--                  grant; 'slots' of the shared grants; by ' ' and the owner the channel on which
--                  it waited. It expires after the last grant
--       2 queue    list of the waiters' entries "channel ttl floor owner slots" in their order
--       3 clock    see redis_queue.lua
--       4 holders  sorted set: the owners by the end of their grants in ms of the server's clock
-- slots: holders at most; 0 any number (a reader), -1 no other holder (a writer)

local LINGER = 30000 -- ms for which the ends of expired grants are remembered
local holders = KEYS[4]

local function now_ms()
  return math.floor(ticks() * 0.016)
end

local function drop(owner)
  redis.call('ZREM', holders, owner)
  redis.call('HDEL', lock, owner, ' ' .. owner)
  if redis.call('HGET', lock, 'writer') == owner then
    redis.call('HDEL', lock, 'writer')
  end
end

-- Returns token, ttl and count of the owner's grant, or nothing.
local function grant_of(owner)
  local found = redis.call('HGET', lock, owner)
  if found then
    return string.match(found, '^(%S+) (%S+) (%S+)$')
  end
end

-- Returns the owner whose grant ends first, and the ms until then; nothing if there is no holder.
local function first_end()
  local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')
  if first[1] then
    return first[1], tonumber(first[2]) - now_ms()
  end
end

local function drop_expired()
  local owner, left = first_end()
  if owner and left <= 0 then
    while owner and left <= 0 do
      suspect(owner, redis.call('HGET', lock, ' ' .. owner))
      drop(owner)
      owner, left = first_end()
    end
    if not owner then
      redis.call('DEL', lock)
    end
  end
  if owner and left > tonumber(({grant_of(owner)})[2]) then
    -- The clock was set back: no grant may last longer than its ttl.
    for _, one in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
      local _, longest = grant_of(one)
      if tonumber(redis.call('ZSCORE', holders, one)) > now_ms() + longest then
        redis.call('ZADD', holders, now_ms() + longest, one)
      end
    end
  end
end

local function is_free(slots)
  local size = redis.call('ZCARD', holders)
  if slots < 0 then
    return size == 0
  end
  return redis.call('HEXISTS', lock, 'writer') == 0 and (slots == 0 or size < slots)
end

-- Further arguments are fields of the lock and their values.
local function keep(owner, token, ttl, count, ...)
  redis.call('ZADD', holders, now_ms() + ttl, owner)
  redis.call('HSET', lock, owner, token .. ' ' .. ttl .. ' ' .. count, ...)
  local life = math.max(redis.call('PTTL', lock), ttl + LINGER)
  redis.call('PEXPIRE', lock, life)
  redis.call('PEXPIRE', holders, life)
end

local function grant_shared(owner, ttl, token, slots)
  local text = remember(token)
  if slots < 0 then
    keep(owner, text, ttl, '1', 'writer', owner)
  else
    keep(owner, text, ttl, '1', 'slots', slots)
  end
end

-- Grants to the waiters at the head of the queue, up to the first one that must wait. A waiter that
-- is not connected any more is dropped, so that a killed writer does not keep readers out.
local function grant_waiting()
  local entry = redis.call('LINDEX', queue, 0)
  while entry do
    local channel, ttl, floor, owner, text = string.match(entry, '^(%S+) (%d+) (%d+) (.*) (%S+)$')
    local slots = tonumber(text)
    if is_free(slots) then
      redis.call('LPOP', queue)
      local is_late = is_stopped(owner)
      local token = is_late and 0 or next_token(tonumber(floor))
      local message = string.format('%.0f %.0f %s', token, ticks(), owner)
      if redis.call('PUBLISH', channel, message) > 0 and not is_late then
        grant_shared(owner, ttl, token, slots)
        redis.call('HSET', lock, ' ' .. owner, channel)
      end
    elseif redis.call('PUBSUB', 'NUMSUB', channel)[2] == 0 then
      redis.call('LPOP', queue)
    else
      return
    end
    entry = redis.call('LINDEX', queue, 0)
  end
end
