-- Sets the units that may be reserved to those of the database less those in the stream.
-- The caller holds the sale's lock, so that no order is written meanwhile.
--
-- KEYS  1 state, 2 taken, 3 outcomes, 4 orders
-- ARGV  1 units in the database, 2 '1' to compare customers and outcomes too
--       3 run id of this server, then pairs of customer and units taken
-- Returns {left before, left after, customers corrected, outcomes deleted}, nil if not loaded

local before = redis.call('HGET', KEYS[1], 'left')
if not before then
  return false
end
before = tonumber(before)

local queued, numbers, wanted = 0, {}, {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[4], '-', '+')) do
  local fields = {}
  for i = 1, #entry[2], 2 do
    fields[entry[2][i]] = entry[2][i + 1]
  end
  local quantity = tonumber(fields.q)
  if quantity and fields.c and fields.n then
    queued = queued + quantity
    wanted[fields.c] = (wanted[fields.c] or 0) + quantity
    numbers[fields.n] = true
  end
end

local after = ARGV[1] - queued
redis.call('HSET', KEYS[1], 'left', after)
if ARGV[2] ~= '1' then
  return {before, after, 0, 0}
end

for i = 4, #ARGV, 2 do
  wanted[ARGV[i]] = (wanted[ARGV[i]] or 0) + ARGV[i + 1]
end
local corrected, deleted = 0, 0
local taken = redis.call('HGETALL', KEYS[2])
for i = 1, #taken, 2 do
  local customer, units = taken[i], tonumber(taken[i + 1])
  if units == (wanted[customer] or 0) then
    wanted[customer] = nil
  elseif not wanted[customer] then
    wanted[customer] = 0
  end
end
for customer, units in pairs(wanted) do
  redis.call('HSET', KEYS[2], customer, units)
  corrected = corrected + 1
end
-- The customer of a reservation without an entry may send the form again.
local outcomes = redis.call('HGETALL', KEYS[3])
for i = 1, #outcomes, 2 do
  if outcomes[i + 1]:match(' waiting$') and not numbers[outcomes[i]] then
    redis.call('HDEL', KEYS[3], outcomes[i])
    deleted = deleted + 1
  end
end
redis.call('HSET', KEYS[1], 'run', ARGV[3])
return {before, after, corrected, deleted}
