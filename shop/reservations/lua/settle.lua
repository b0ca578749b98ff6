-- Removes decided reservations from the stream. A second run changes nothing.
--
-- KEYS  1 state, 2 taken, 3 outcomes, 4 waiting, 5 orders
-- ARGV  for each: id of the entry, number, customer, quantity, outcome
-- Returns the number of entries that were still in the stream
--
-- After 'sold_out' no units are released: the stock row had fewer than `stock` promised.

local state, taken, outcomes, waiting, orders = unpack(KEYS)
local has_left_stock = { won = true, returned = true, sold_out = true }

local is_open = redis.call('HEXISTS', state, 'stock') == 1
local settled = 0
for i = 1, #ARGV, 5 do
  local id, number, customer, quantity, outcome = unpack(ARGV, i, i + 4)
  if redis.call('XDEL', orders, id) == 1 then
    settled = settled + 1
    redis.call('HDEL', waiting, number)
    if redis.call('HINCRBY', waiting, 'customer:' .. customer, -quantity) <= 0 then
      redis.call('HDEL', waiting, 'customer:' .. customer)
    end
    if is_open then
      redis.call('HINCRBY', state, 'queued', -quantity)
      if has_left_stock[outcome] then
        redis.call('HINCRBY', state, 'stock', -quantity)
      end
      if outcome == 'won' or outcome == 'returned' then
        redis.call('HINCRBY', taken, customer, quantity)
      end
    end
  end
  if is_open then
    redis.call('HSET', outcomes, number, quantity .. ' ' .. outcome)
  end
end
return settled
